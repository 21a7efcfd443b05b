"""What parameters a model has, without making any."""

from typing import Any

import jax
import jax.numpy as jnp

from birdie_jax.batch import Batch
from birdie_jax.models.language_model import LanguageModel


def parameter_shapes(model: LanguageModel) -> Any:
    """Return the tree of a model's parameters as `jax.ShapeDtypeStruct`s."""
    one = jnp.zeros((1, 1), jnp.int32)
    batch = Batch(one, one, one > 0, one, one, one > 0, one)
    return jax.eval_shape(model.init, jax.random.key(0), batch)["params"]
