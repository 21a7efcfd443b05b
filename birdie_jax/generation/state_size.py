"""How much a model keeps for a row while it writes."""

import jax

from birdie_jax.models import LanguageModel


def state_bytes(model: LanguageModel, length: int) -> int:
    """Return the bytes of the model's cache for one row of `length` tokens, computed from its shapes."""
    cache = jax.eval_shape(lambda: model.empty_cache(1, length))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))


def state_grows(model: LanguageModel) -> bool:
    """Tell whether the model's cache grows with the tokens that a row has, as that of attention does."""
    return state_bytes(model, 2) > state_bytes(model, 1)
