"""What is divided over which axes of the device mesh, by logical axes.

The mesh has four axes. Rows of a batch are divided over `data` and `fsdp`, tokens of a row over `sequence`;
the channels between a block's first and last projection, and the vocabulary, over `tensor`. Parameters are
divided over `tensor` too, and over `fsdp` along the features of the residual stream: there they are
gathered where they are used, and their gradients are divided again (ZeRO, Rajbhandari et al. 2020; the two
projections around `tensor` as in Megatron-LM, Shoeybi et al. 2019). The logical axes of a parameter are
given where it is created (`parameters`).
"""

from collections.abc import Mapping
from functools import partial
from math import prod

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array

MESH_AXES = ("data", "fsdp", "tensor", "sequence")
ROW_AXES = ("data", "fsdp")

# The mesh axes of each logical axis; what has the logical axis None is whole on every device.
_MESH_AXES_OF = {
    "rows": ROW_AXES,
    # Rows while they read a table whose features are divided over `fsdp`.
    "reading rows": ("data",),
    "length": ("sequence",),
    "features": ("fsdp",),
    "inner": ("tensor",),
    "vocab": ("tensor",),
}

LogicalAxes = tuple[str | None, ...]


def partition_spec(axes: LogicalAxes, dimensions: int) -> PartitionSpec:
    """Return the mesh axes of each dimension of a parameter.

    Args:
        axes: the logical axes of its last dimensions.
        dimensions: the number of its dimensions; those before, of scanned layers, are whole.

    Raises:
        ValueError: an axis is unknown, or there are more of them than dimensions.
    """
    unknown = [name for name in axes if name is not None and name not in _MESH_AXES_OF]
    if unknown or len(axes) > dimensions:
        known = ", ".join(map(repr, _MESH_AXES_OF))
        raise ValueError(
            f"axes of a parameter: found {axes} for {dimensions} dimensions; allowed: one of {known} or "
            "None for each of the last"
        )
    whole = (None,) * (dimensions - len(axes))
    return PartitionSpec(*whole, *(_MESH_AXES_OF[name][0] if name else None for name in axes))


def must_divide(size: int, extents: Mapping[str, int]) -> str | None:
    """Return why `size` devices cannot divide extents evenly; None if they can.

    Args:
        size: the number of devices.
        extents: the extents to divide, by the names of their fields.
    """
    for name, extent in extents.items():
        if extent % size:
            return f"it must divide {name} = {extent}"
    return None


def mesh_size(axis: str) -> int:
    """Return the devices along `axis` of the mesh in force (`jax.set_mesh`); 1 without such an axis."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape[axis] if axis in mesh.axis_names else 1


def mesh_platform() -> str:
    """Return the platform, such as "cpu", of the mesh in force; without one, of JAX's default devices.

    It is known while a program is traced, and so may decide how many operations there are. What only
    exchanges one operation for another is left to `jax.lax.platform_dependent`.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def dividing_axes(logical: str | None, extent: int) -> tuple[str, ...]:
    """Return the mesh axes that divide a logical axis of `extent`; none if they do not divide it evenly."""
    known = _MESH_AXES_OF.get(logical, ()) if logical else ()
    axes = tuple(axis for axis in known if mesh_size(axis) > 1)
    return axes if extent % prod(map(mesh_size, axes)) == 0 else ()


def constrained(x: Array, *logical: str | None) -> Array:
    """Return `x`, divided over the devices by its logical axes.

    An axis that cannot be divided evenly is whole on every device. Where rows are all that is divided, XLA
    is left alone: it follows the batch.
    """
    if all(mesh_size(axis) == 1 for axis in MESH_AXES if axis != "data"):
        return x
    spec = [dividing_axes(name, size) or None for name, size in zip(logical, x.shape, strict=True)]
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def gathered(parameter: Array, logical: tuple[str | None, ...]) -> Array:
    """Return `parameter` whole along `fsdp`; its gradient is divided again, as the parameter is."""
    return constrained(parameter, *(None if name == "features" else name for name in logical))


def _gathered_forward(parameter, logical):
    return gathered(parameter, logical), None


def _gathered_backward(logical, _, gradient):
    return (constrained(gradient, *logical),)


gathered.defvjp(_gathered_forward, _gathered_backward)
