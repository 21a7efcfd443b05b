"""What parameters a model has, without making any."""

import jax
from jaxtyping import PyTree

from birdie_jax.models.language_model import LanguageModel
from birdie_jax.models.parameters import one_token_batch


def parameter_shapes(model: LanguageModel) -> PyTree[jax.ShapeDtypeStruct]:
    """Return the tree of a model's parameters as `jax.ShapeDtypeStruct`s."""
    return jax.eval_shape(lambda: model.init(jax.random.key(0), one_token_batch()))["params"]
