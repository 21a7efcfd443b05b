"""How logical axes of arrays are divided over the axes of the device mesh.

The mesh has four axes. `data` and `fsdp` divide the rows of a batch, and `sequence` the tokens of a row.
`tensor` divides the vocabulary, and the channels between a block's first and last projection.

Parameters are divided over `tensor` too, and over `fsdp` along the features of the residual stream. They
are gathered over `fsdp` where they are used, and their gradients are divided again (ZeRO, Rajbhandari et
al. 2020). The two projections around `tensor` follow Megatron-LM (Shoeybi et al. 2019).

The features of a last projection are its last dimension. `fsdp` divides its channels instead, where they
divide evenly: the TPU's compiler scatters gradients along a first dimension, but sums them whole along a
narrow last one, which sends twice as much.

Each parameter is created with its logical axes (`parameters`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import ParamSpec, TypeVar

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array, PyTree

MESH_AXES = ("data", "fsdp", "tensor", "sequence")
ROW_AXES = ("data", "fsdp")

# The mesh axes of each logical axis. A dimension with the logical axis None is whole on every device.
_MESH_AXES_OF = {
    "rows": ROW_AXES,
    # The rows of a lookup in a table whose features are divided over `fsdp`.
    "reading rows": ("data",),
    "length": ("sequence",),
    "features": ("fsdp",),
    "inner": ("tensor",),
    "vocab": ("tensor",),
}

LogicalAxes = tuple[str | None, ...]
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def partition_spec(axes: LogicalAxes, shape: Sequence[int], sizes: Mapping[str, int]) -> PartitionSpec:
    """Return the mesh axes of each dimension of a parameter.

    Args:
        axes: the logical axes of its last dimensions.
        shape: its dimensions; the leading ones of scanned layers are whole.
        sizes: the number of devices along each mesh axis.

    Raises:
        ValueError: an axis is unknown, or there are more axes than dimensions.
    """
    dimensions = len(shape)
    unknown = [name for name in axes if name is not None and name not in _MESH_AXES_OF]
    if unknown or len(axes) > dimensions:
        known = ", ".join(map(repr, _MESH_AXES_OF))
        raise ValueError(
            f"axes of a parameter: found {axes} for {dimensions} dimensions; allowed: one of {known} or "
            "None for each of the last"
        )
    whole = (None,) * (dimensions - len(axes))
    if _is_divided_along_channels(axes, shape, sizes):
        return PartitionSpec(*whole, ("tensor", "fsdp"), None)
    return PartitionSpec(*whole, *(_MESH_AXES_OF[name][0] if name else None for name in axes))


def _is_divided_along_channels(axes: LogicalAxes, shape: Sequence[int], sizes: Mapping[str, int]) -> bool:
    """Return whether `fsdp`, with `tensor`, divides the first dimension of a block's last projection."""
    return axes == ("inner", "features") and shape[-2] % (sizes["tensor"] * sizes["fsdp"]) == 0


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
    """Return the size of `axis` in the current mesh (`jax.set_mesh`); 1 without such an axis."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape[axis] if axis in mesh.axis_names else 1


def mesh_platform() -> str:
    """Return the platform of the current mesh, such as "cpu"; without a mesh, JAX's default platform.

    The platform is known while a program is traced, so it may change the number of operations. Use
    `jax.lax.platform_dependent` to replace one operation with another.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def may_run_on_tpu() -> bool:
    """Return whether the current mesh has TPUs; true without a mesh.

    `jax.lax.platform_dependent` traces a kernel for TPUs even if no TPU will run it, which takes as long as
    tracing the rest of the model. If this returns False, callers skip that call.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device is None or device.platform == "tpu"


def dividing_axes(logical: str | None, extent: int) -> tuple[str, ...]:
    """Return the mesh axes that divide a logical axis of `extent`; none if they do not divide it evenly."""
    known = _MESH_AXES_OF.get(logical, ()) if logical else ()
    axes = tuple(axis for axis in known if mesh_size(axis) > 1)
    return axes if extent % prod(map(mesh_size, axes)) == 0 else ()


def constrained(x: Array, *logical: str | None) -> Array:
    """Return `x`, divided over the devices by its logical axes.

    An axis that does not divide evenly is whole on every device. If only rows are divided, this adds no
    constraint: XLA follows the batch.
    """
    if all(mesh_size(axis) == 1 for axis in MESH_AXES if axis != "data"):
        return x
    spec = [dividing_axes(name, size) or None for name, size in zip(logical, x.shape, strict=True)]
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def gathered(parameter: Array, logical: tuple[str | None, ...]) -> Array:
    """Return `parameter` whole along `fsdp`; its gradient is divided like the parameter."""
    return constrained(parameter, *(None if name == "features" else name for name in logical))


def _gathered_forward(parameter, logical):
    return gathered(parameter, logical), None


def _gathered_backward(logical, _, gradient):
    sizes = {axis: mesh_size(axis) for axis in MESH_AXES}
    if sizes["fsdp"] > 1 and _is_divided_along_channels(logical, gradient.shape, sizes):
        spec = partition_spec(logical, gradient.shape, sizes)
        return (jax.lax.with_sharding_constraint(gradient, spec),)
    return (constrained(gradient, *logical),)


gathered.defvjp(_gathered_forward, _gathered_backward)


# XLA divides its own operations among devices, but not a kernel, which it treats as one call. It refuses
# a kernel outside of `shard_map` if the mesh has several devices.


def logical_shard_map(
    function: Callable[Parameters, Result],
    arguments: tuple[PyTree, ...],
    *,
    in_axes: Sequence[LogicalAxes],
    out_axes: LogicalAxes | list[LogicalAxes],
) -> Callable[Parameters, Result]:
    """Return `function` mapped over the devices of the mesh, each with its own part of the arguments.

    The mesh is the current one (`jax.set_mesh`). Without a mesh, or on one device, this returns the
    function itself. If the devices do not divide a logical axis evenly, each of them computes all of it.

    Args:
        function: a function that treats every row, and every other divided axis, independently.
        arguments: the arguments of the call, pytrees of arrays or None.
        in_axes: for each argument, the logical axes (see `axes`) of the first dimensions of all its arrays.
        out_axes: the logical axes of the first dimensions of the result; a list for a tuple of results.
    """
    if prod(map(mesh_size, MESH_AXES)) == 1:
        return function
    mesh_axes = _mesh_axes_of(arguments, in_axes)

    def spec(logical: LogicalAxes) -> PartitionSpec:
        return PartitionSpec(*(mesh_axes.get(name) or None for name in logical))

    return jax.shard_map(
        function,
        in_specs=tuple(map(spec, in_axes)),
        out_specs=tuple(map(spec, out_axes)) if isinstance(out_axes, list) else spec(out_axes),
        check_vma=False,
    )


def _mesh_axes_of(
    arguments: Sequence[PyTree], in_axes: Sequence[LogicalAxes]
) -> dict[str | None, tuple[str, ...]]:
    """Return the mesh axes that divide each logical axis in all arrays."""
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
