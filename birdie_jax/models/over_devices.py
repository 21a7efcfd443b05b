"""A scan kernel under a mesh: each device scans the rows that it holds.

XLA can divide its own operations among devices, but not a kernel, which it sees as one call.
"""

from collections.abc import Callable
from math import prod

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array

ROW_AXES = ("data",)


def over_devices(function: Callable[..., Array], *arrays: Array | None) -> Array:
    """Return function(*arrays), which treats every row on its own, row by row on the devices of the mesh.

    The mesh is the one in force (`jax.set_mesh`); without one, or on one device, this is a plain call.
    Where the devices do not divide the rows, each of them computes all.

    Args:
        function: maps arrays of [rows, ...] to an array of [rows, ...].
        arrays: its arguments; None is passed on.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = tuple(axis for axis in ROW_AXES if axis in mesh.axis_names)
    devices = prod(mesh.shape[axis] for axis in axes)
    if devices == 1:
        return function(*arrays)
    rows = next(array for array in arrays if array is not None).shape[0]
    spec = PartitionSpec(axes) if rows % devices == 0 else PartitionSpec()
    return jax.shard_map(function, in_specs=spec, out_specs=spec, check_vma=False)(*arrays)
