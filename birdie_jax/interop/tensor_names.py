"""The names of a model's tensors in exported files: dotted paths, one tensor a layer.

A parameter keeps the names of the modules that it is in: `embedding`, `final_norm.scale`,
`layers.3.mixer.forget_gate.kernel`. In the model the layers of a scanned stack are one array with a leading
axis; in files each layer is a tensor of its own, as elsewhere in the field. Kernels are [inputs, outputs].
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

import jax
import numpy as np
from jax.tree_util import KeyPath
from jaxtyping import PyTree

_STACK, _LAYERS = "blocks", "layers"

Leaf = TypeVar("Leaf", np.ndarray, jax.Array, jax.ShapeDtypeStruct)


def name_parameters(params: PyTree) -> dict[str, Leaf]:
    """Return name -> array for a tree of parameters, or name -> structure for a tree of structures."""
    named: dict[str, Leaf] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        keys = _keys(path)
        if keys[0] != _STACK:
            named[".".join(keys)] = leaf
            continue
        for layer in range(leaf.shape[0]):
            named[_layer_name(layer, keys)] = _take_layer(leaf, layer)
    return named


def parameters_from_names(named: Mapping[str, np.ndarray], shapes: PyTree) -> PyTree:
    """Return the tree of parameters of which `named` is `name_parameters`.

    Args:
        named: name -> array.
        shapes: a tree of the same structure, such as `parameter_shapes` gives; its types are not used.

    Raises:
        KeyError: a tensor is missing.
    """

    def find(path, leaf):
        keys = _keys(path)
        if keys[0] != _STACK:
            return named[".".join(keys)]
        return np.stack([named[_layer_name(layer, keys)] for layer in range(leaf.shape[0])])

    return jax.tree_util.tree_map_with_path(find, shapes)


def _keys(path: KeyPath) -> list[str]:
    return [part.key for part in path]


def _layer_name(layer: int, keys: Sequence[str]) -> str:
    return ".".join([_LAYERS, str(layer), *keys[1:]])


def _take_layer(leaf: Leaf, layer: int) -> Leaf:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
    return cast(Leaf, leaf[layer])
