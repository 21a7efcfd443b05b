"""How much memory a model's cache takes while it decodes."""

import jax

from birdie_jax.models import LanguageModel
from birdie_jax.models.registry import architecture_of


def cache_bytes(model: LanguageModel, length: int) -> int:
    """Return the bytes of the model's cache for one row of `length` tokens, computed from its shapes."""
    cache = jax.eval_shape(lambda: model.empty_cache(1, length))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))


def cache_grows(model: LanguageModel) -> bool:
    """Tell whether the model's cache grows with the tokens of a row, as that of attention without a window.

    An encoder has none.
    """
    if architecture_of(model.config).encoder:
        return False
    return cache_bytes(model, 2) > cache_bytes(model, 1)
