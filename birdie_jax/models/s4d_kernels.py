"""The kernels that the state-space layers of an encoder have learned, to look at."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float32, PyTree

from birdie_jax.models.s4d import state_space


class LayerKernels(NamedTuple):
    """What each layer counts of the tokens around one, by their distance; heads side by side.

    Attributes:
        forward: float32 [layers, heads, length]: K_l of the token l places before.
        backward: the same of the token l places after.
    """

    forward: Float32[np.ndarray, "layers heads length"]
    backward: Float32[np.ndarray, "layers heads length"]


def layer_kernels(params: PyTree, length: int) -> LayerKernels:
    """Return the kernels of all layers, without D (`StateSpace.kernel`).

    Args:
        params: the parameters of bigs or stack_ssm.
        length: the number of distances, from 0 on.

    Raises:
        ValueError: the model has no such layers.
    """
    routing = _inner(params, "blocks", "mixer", "routing")
    if routing is None:
        raise ValueError("params: found a model without state-space layers; allowed: bigs, stack_ssm")

    @jax.jit
    @jax.vmap
    def kernels(layer: Any) -> Any:
        return state_space(layer).kernel(length)

    return LayerKernels(*(np.asarray(kernels(routing[f"{way}_ssm"])) for way in ("forward", "backward")))


def _inner(tree: Any, *path: str) -> Any:
    """Return the branch of a tree of parameters, or None if it has no such branch."""
    for name in path:
        if name not in tree:
            return None
        tree = tree[name]
    return tree
