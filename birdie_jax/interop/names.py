"""The names of a model's tensors outside of it: dotted paths, one tensor a layer.

A parameter keeps the names of the modules that it is in: `embedding`, `final_norm.scale`,
`layers.3.mixer.forget_gate.kernel`. Inside, the layers of a scanned stack are one array with a leading
axis; outside, each layer is a tensor of its own, as elsewhere in the field. Kernels are [inputs, outputs].
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

_STACK, _LAYERS = "blocks", "layers"


def to_names(params: Any) -> dict[str, Any]:
    """Return name -> array for a tree of parameters, or name -> structure for a tree of structures."""
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        keys = [part.key for part in path]
        if keys[0] != _STACK:
            named[".".join(keys)] = leaf
            continue
        for layer in range(leaf.shape[0]):
            named[".".join([_LAYERS, str(layer), *keys[1:]])] = _slice(leaf, layer)
    return named


def from_names(named: Mapping[str, Any], shapes: Any) -> Any:
    """Return the tree of parameters of which `named` is `to_names`.

    Args:
        named: name -> array.
        shapes: a tree of the same structure, such as `parameter_shapes` gives; its types are not read.

    Raises:
        KeyError: a tensor is missing.
    """

    def one(path, leaf):
        keys = [part.key for part in path]
        if keys[0] != _STACK:
            return named[".".join(keys)]
        layers = range(leaf.shape[0])
        return np.stack([named[".".join([_LAYERS, str(layer), *keys[1:]])] for layer in layers])

    return jax.tree_util.tree_map_with_path(one, shapes)


def _slice(leaf: Any, layer: int) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
    return leaf[layer]
