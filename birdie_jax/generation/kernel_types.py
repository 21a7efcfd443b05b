"""Projection kernels in the model's type of computation, cast once instead of at every decode step."""

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

# Every layer casts an array of this name to the model's type before it uses it, and uses it in no other.
_CAST_BY_LAYERS = "kernel"


def cast_kernels(params: PyTree, dtype: str) -> PyTree:
    """Return `params` with the kernels in `dtype`; a model gives the same bits with them.

    A kernel in float32 would be cast to bfloat16 for every token: twice the bytes to read, and as many
    again to write and read. Other parameters are used in float32 and stay as they are.
    """

    def cast(path, leaf):
        return jnp.asarray(leaf, dtype) if path[-1].key == _CAST_BY_LAYERS else leaf

    return jax.tree_util.tree_map_with_path(cast, params)
