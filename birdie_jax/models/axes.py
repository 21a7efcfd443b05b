"""Where everything lies on the device mesh: one table of logical axes, one of parameters.

The mesh has four axes. Rows of a batch are divided over `data` and `fsdp`, positions of a row over
`sequence`; the channels between a block's first and last projection, and the vocabulary, over `tensor`.
Parameters are divided over `tensor` likewise, and over `fsdp` along the features of the residual stream:
there they are put together where they are used, and their gradients are taken apart again (ZeRO,
Rajbhandari et al. 2020; the two projections around `tensor` as in Megatron-LM, Shoeybi et al. 2019).
"""

import re
from functools import partial
from math import prod

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array

MESH_AXES = ("data", "fsdp", "tensor", "sequence")
ROW_AXES = ("data", "fsdp")

# Mesh axes of each logical axis; a logical axis None lies on none.
_MESH_AXES_OF = {
    "rows": ROW_AXES,
    # Rows while they read a table whose features lie on `fsdp`.
    "reading rows": ("data",),
    "length": ("sequence",),
    "features": ("fsdp",),
    "inner": ("tensor",),
    "vocab": ("tensor",),
}

# The first pattern found in a parameter's path tells its last axes; one before them, of layers, is whole.
_PARAMETERS = (
    (r"(embedding|head)$", ("vocab", "features")),
    (r"rg_lru/\w+_gate/kernel$", ("inner", None, None)),
    (r"(rg_lru/(\w+_gate/bias|decay)|mixer/forget_bias)$", ("inner",)),
    # Short vectors of the residual stream: gathering them would cost more than they take.
    (r"norm/scale$", (None,)),
    (r"convolution/kernel$", (None, None)),
    (r"/out/kernel$", ("inner", "features")),
    (r"(mixer|mlp)/\w+/kernel$", ("features", "inner")),
)


def kernel_axes(name: str) -> tuple[str, str]:
    """Return the logical axes of the weights of the projection `name`: "out" leads back to the features."""
    return ("inner", "features") if name == "out" else ("features", "inner")


def parameter_spec(path: str, dimensions: int) -> PartitionSpec:
    """Return where a parameter of a language model lies.

    Args:
        path: its names joined by "/", such as "blocks/mixer/out/kernel".
        dimensions: of the array.

    Raises:
        ValueError: no rule tells of such a parameter.
    """
    for pattern, logical in _PARAMETERS:
        if re.search(pattern, path):
            return _spec((None,) * (dimensions - len(logical)) + logical)
    raise ValueError(f"axes: no rule tells where parameter {path!r} lies on a mesh")


def mesh_size(axis: str) -> int:
    """Return the devices along `axis` of the mesh in force (`jax.set_mesh`); 1 without such an axis."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape[axis] if axis in mesh.axis_names else 1


def dividing_axes(logical: str | None, extent: int) -> tuple[str, ...]:
    """Return the mesh axes that a logical axis of `extent` lies on; none if they do not divide it."""
    axes = tuple(axis for axis in _MESH_AXES_OF.get(logical, ()) if mesh_size(axis) > 1)
    return axes if extent % prod(map(mesh_size, axes)) == 0 else ()


def constrained(x: Array, *logical: str | None) -> Array:
    """Return `x`, to be held by the devices as its logical axes tell.

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


def _spec(logical):
    return PartitionSpec(*(_MESH_AXES_OF.get(name, (None,))[0] for name in logical))
