"""Parameters in the type that the model computes in, so that no step of the loop converts them again."""

from typing import Any

import jax
import jax.numpy as jnp

# Every layer converts an array of this name to the model's type before it uses it, and uses it in no other.
_CONVERTED_AS_IT_IS = "kernel"


def in_compute_type(params: Any, dtype: str) -> Any:
    """Return `params` with the kernels in `dtype`; a model gives the same bits with them.

    A kernel in float32 would be converted to bfloat16 for every token: twice the bytes to read, and as many
    again to write and read. Other parameters are read in float32 and stay as they are.
    """

    def one(path, leaf):
        return jnp.asarray(leaf, dtype) if path[-1].key == _CONVERTED_AS_IT_IS else leaf

    return jax.tree_util.tree_map_with_path(one, params)
