"""A scan kernel under a mesh: each device scans the rows that it holds.

XLA can divide its own operations among devices, but not a kernel, which it sees as one call.
"""

from collections.abc import Callable
from math import prod

import jax
from jax.sharding import PartitionSpec
from jaxtyping import PyTree

ROW_AXES = ("data",)


def over_devices(function: Callable, *by_row: PyTree, shared: tuple[PyTree, ...] = ()) -> PyTree:
    """Return function(*by_row, *shared), which treats every row on its own, by the devices of the mesh.

    The mesh is the one in force (`jax.set_mesh`); without one, or on one device, this is a plain call.
    Where the devices do not divide the rows, each of them computes all.

    Args:
        function: maps its arguments to arrays of [rows, ...].
        by_row: arguments whose arrays are [rows, ...]; None is passed on.
        shared: further arguments, the same for all rows.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = tuple(axis for axis in ROW_AXES if axis in mesh.axis_names)
    devices = prod(mesh.shape[axis] for axis in axes)
    if devices == 1:
        return function(*by_row, *shared)
    rows = jax.tree.leaves(by_row)[0].shape[0]
    spec = PartitionSpec(axes) if rows % devices == 0 else PartitionSpec()
    specs = (*[spec] * len(by_row), *[PartitionSpec()] * len(shared))
    return jax.shard_map(function, in_specs=specs, out_specs=spec, check_vma=False)(*by_row, *shared)
