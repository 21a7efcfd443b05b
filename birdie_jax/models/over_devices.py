"""A kernel under a mesh: each device computes the rows, positions and channels that it holds.

XLA can divide its own operations among devices, but not a kernel, which it sees as one call.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec
from jaxtyping import PyTree

from birdie_jax.models.axes import dividing_axes

LogicalAxes = tuple[str | None, ...]


def over_devices(
    function: Callable,
    *arguments: PyTree,
    axes: Sequence[LogicalAxes],
    result: LogicalAxes | list[LogicalAxes],
) -> PyTree:
    """Return function(*arguments), computed by each device of the mesh for the part that it holds.

    The mesh is the one in force (`jax.set_mesh`); without one, or on one device, this is a plain call.
    Along a logical axis that the devices do not divide evenly, each of them computes all.

    Args:
        function: treats every row on its own, and so all else that is divided.
        arguments: pytrees of arrays; None is passed on.
        axes: for each argument, the logical axes (see `axes`) that all its arrays begin with.
        result: the logical axes that the result begins with; a list of them for a tuple of results.
    """
    lies = _divisions(arguments, axes)
    if not any(lies.values()):
        return function(*arguments)

    def spec(logical):
        return PartitionSpec(*(lies.get(name) or None for name in logical))

    return jax.shard_map(
        function,
        in_specs=tuple(map(spec, axes)),
        out_specs=tuple(map(spec, result)) if isinstance(result, list) else spec(result),
        check_vma=False,
    )(*arguments)


def _divisions(arguments: Sequence[Any], axes: Sequence[LogicalAxes]) -> dict[str, tuple[str, ...]]:
    """Return the mesh axes that each logical axis lies on, the same in all arrays."""
    extents: dict[str, set[int]] = {}
    for argument, logical in zip(arguments, axes, strict=True):
        for leaf in jax.tree.leaves(argument):
            for name, size in zip(logical, leaf.shape, strict=False):
                if name is not None:
                    extents.setdefault(name, set()).add(size)
    lies = {}
    for name, sizes in extents.items():
        found = [dividing_axes(name, size) for size in sizes]
        lies[name] = found[0] if all(found) else ()
    return lies
