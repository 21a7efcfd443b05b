"""The names of a model's tensors in exported files: dotted paths, with one tensor per layer.

A name consists of the names of the parameter's modules: `embedding`, `final_norm.scale`,
`layers.3.mixer.forget_gate.kernel`. In the model, the layers of a scanned stack are one array with a
leading axis (`birdie_jax.models.layer_stacks`). In files, each layer is a separate tensor. Kernels are
[inputs, outputs].
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

import jax
import numpy as np
from jax.tree_util import KeyPath
from jaxtyping import PyTree

from birdie_jax.models.layer_stacks import PERIODS, REST, block_name

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
        for index, name in enumerate(_names_of_layers(keys, leaf.shape[0], params)):
            named[name] = _take_layer(leaf, index)
    return named


def parameters_from_names(named: Mapping[str, np.ndarray], shapes: PyTree) -> PyTree:
    """Return the tree of parameters for which `name_parameters` returns `named`.

    Args:
        named: name -> array.
        shapes: a tree of the same structure, such as from `parameter_shapes`. Its types are not used.

    Raises:
        KeyError: a tensor is missing.
    """

    def find(path, leaf):
        keys = _keys(path)
        if keys[0] != _STACK:
            return named[".".join(keys)]
        return np.stack([named[name] for name in _names_of_layers(keys, leaf.shape[0], shapes)])

    return jax.tree_util.tree_map_with_path(find, shapes)


def _keys(path: KeyPath) -> list[str]:
    return [part.key for part in path]


def _names_of_layers(keys: Sequence[str], count: int, params: PyTree) -> list[str]:
    """Return the tensor name of each of the `count` layers in the array at `keys`."""
    _, group, *names = keys
    if group not in (PERIODS, REST):
        return [".".join([_LAYERS, str(layer), group, *names]) for layer in range(count)]
    block, *names = names
    periods = params[_STACK].get(PERIODS, {})
    first = [block_name(number) for number in range(len(params[_STACK][group]))].index(block)
    if group == REST:
        first += len(periods) * next((leaf.shape[0] for leaf in jax.tree.leaves(periods)), 0)
    return [".".join([_LAYERS, str(first + len(periods) * index), *names]) for index in range(count)]


def _take_layer(leaf: Leaf, layer: int) -> Leaf:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
    return cast(Leaf, leaf[layer])
