"""`jax.shard_map` by logical axes: each device computes a kernel for its own rows, tokens and channels.

XLA can divide its own operations among devices, but not a kernel, which it sees as one call.
"""

from collections.abc import Callable, Sequence

import jax
from jax.sharding import PartitionSpec
from jaxtyping import PyTree

from birdie_jax.models.axes import LogicalAxes, dividing_axes


def logical_shard_map(
    function: Callable[..., PyTree],
    *arguments: PyTree,
    in_axes: Sequence[LogicalAxes],
    out_axes: LogicalAxes | list[LogicalAxes],
) -> PyTree:
    """Return function(*arguments), computed by each device of the mesh for its own part.

    The mesh is the one in force (`jax.set_mesh`); without one, or on one device, this is a plain call.
    Along a logical axis that the devices do not divide evenly, each of them computes all.

    Args:
        function: a function that treats every row, and whatever else is divided, independently.
        arguments: pytrees of arrays; None is passed on.
        in_axes: for each argument, the logical axes (see `axes`) of the first dimensions of all its arrays.
        out_axes: the logical axes of the first dimensions of the result; a list of them for a tuple of
            results.
    """
    mesh_axes = _mesh_axes_of(arguments, in_axes)
    if not any(mesh_axes.values()):
        return function(*arguments)

    def spec(logical: LogicalAxes) -> PartitionSpec:
        return PartitionSpec(*(mesh_axes.get(name) or None for name in logical))

    return jax.shard_map(
        function,
        in_specs=tuple(map(spec, in_axes)),
        out_specs=tuple(map(spec, out_axes)) if isinstance(out_axes, list) else spec(out_axes),
        check_vma=False,
    )(*arguments)


def _mesh_axes_of(
    arguments: Sequence[PyTree], in_axes: Sequence[LogicalAxes]
) -> dict[str | None, tuple[str, ...]]:
    """Return the mesh axes that divide each logical axis, the same in all arrays."""
    extents: dict[str, set[int]] = {}
    for argument, logical in zip(arguments, in_axes, strict=True):
        for leaf in jax.tree.leaves(argument):
            for name, size in zip(logical, leaf.shape, strict=False):
                if name is not None:
                    extents.setdefault(name, set()).add(size)
    mesh_axes: dict[str | None, tuple[str, ...]] = {}
    for name, sizes in extents.items():
        found = [dividing_axes(name, size) for size in sizes]
        mesh_axes[name] = found[0] if all(found) else ()
    return mesh_axes
