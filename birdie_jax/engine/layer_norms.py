"""The norms of the gradients and updates of each layer."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from birdie_jax.models.parameters import ParameterPolicy

SumsOfUpdate = Callable[[PyTree[Array], PyTree[Array]], dict[str, Array]]
"""(gradient, update) of a step -> named sums, which are added to the sums of the loss."""
_PREFIX = "squares/"


def layer_squares(policies: PyTree[ParameterPolicy]) -> SumsOfUpdate:
    """Return a function that sums the squares of gradient and update over the parameters of each layer.

    The sums are named `squares/KIND/PART`. Their shape is [layers] for a stack of layers, and [1] for
    another part of the model, such as the embedding. The stack of a hybrid has one entry for each period of
    layers.

    Args:
        policies: the policy of every parameter.
    """
    leaves, structure = jax.tree.flatten(policies)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(policies)]

    def squares(kind: str, tree: PyTree[Array]) -> dict[str, Array]:
        by_parameter = []
        for policy, leaf in zip(leaves, structure.flatten_up_to(tree), strict=True):
            inner = tuple(range(leaf.ndim - len(policy.axes), leaf.ndim))
            by_parameter.append(jnp.sum(jnp.square(leaf.astype(jnp.float32)), axis=inner).reshape(-1))
        lengths: dict[str, set[int]] = {}
        for path, sums in zip(paths, by_parameter, strict=True):
            lengths.setdefault(path[0].key, set()).add(len(sums))
        by_part: dict[str, Float[Array, " layers"]] = {}
        for path, sums in zip(paths, by_parameter, strict=True):
            depth = 1 if len(lengths[path[0].key]) == 1 else 2
            name = "/".join((_PREFIX + kind, *(str(part.key) for part in path[:depth])))
            by_part[name] = by_part[name] + sums if name in by_part else sums
        return by_part

    return lambda gradient, update: squares("gradient", gradient) | squares("update", update)


def layer_norms(sums: Mapping[str, Any], num_steps: int) -> dict[str, float]:
    """Return the root mean square over steps of each layer's norms, named `KIND_norm/PART/LAYER`.

    Args:
        sums: the sums of the steps; only those of `layer_squares` are read.
        num_steps: the number of steps that were not skipped.
    """
    found: dict[str, float] = {}
    for name, values in sums.items():
        if not name.startswith(_PREFIX):
            continue
        kind, _, part = name.removeprefix(_PREFIX).partition("/")
        norms = np.sqrt(np.asarray(values) / max(num_steps, 1))
        digits = len(str(len(norms) - 1))
        for layer, norm in enumerate(norms):
            place = f"/{layer:0{digits}}" if len(norms) > 1 else ""
            found[f"{kind}_norm/{part}{place}"] = float(norm)
    return found
