"""Parameters in the types in which layers read them, cast once instead of at every decode step."""

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from birdie_jax.models.parameters import ParameterPolicy


def cast_parameters(params: PyTree, policies: PyTree[ParameterPolicy]) -> PyTree:
    """Return `params` in the types of their policies; a model gives the same bits with them.

    A kernel in float32 would be cast to bfloat16 for every token: twice the bytes to read, and as many
    again to write and read.

    Args:
        params: the parameters of a model.
        policies: those of `parameter_policies`.
    """

    def cast(leaf, policy):
        return leaf if leaf.dtype == policy.compute_dtype else jnp.asarray(leaf, policy.compute_dtype)

    return jax.tree.map(cast, params, policies)
