"""The matrix product of every projection, with a derivative that XLA's CPU compiler does well.

The usual derivative of x @ w asks for (g^T x)^T. XLA's CPU compiler then writes a transposed copy of g, and
computes whatever g is fused with once more for it. As one product x^T g of two matrices the same sums
took half the time: `python -m benchmarks.projection_gradient`.
"""

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from birdie_jax.models.axes import mesh_size

NAME = "projection"


def matmul(
    x: Float[Array, "*batch inputs"], kernel: Float[Array, "inputs outputs"]
) -> Float[Array, "*batch outputs"]:
    """Return x @ kernel, named for rematerialisation by `NAME`; both arguments are of one type."""
    # Rematerialisation by primitive does not see the product inside a function with its own derivative.
    return checkpoint_name(_matmul(x, kernel), NAME)


@jax.custom_vjp
def _matmul(x: Array, kernel: Array) -> Array:
    return jax.lax.dot_general(x, kernel, (((x.ndim - 1,), (0,)), ((), ())))


def _forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _matmul(x, kernel), (x, kernel)


def _backward(residuals: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, kernel = residuals
    dx = jax.lax.dot_general(g, kernel, (((g.ndim - 1,), (1,)), ((), ())))
    # Elsewhere the axes are not merged: merging rows and length would gather what a mesh divides.
    merged = _product if mesh_size("sequence") > 1 else _merged_product
    dkernel = jax.lax.platform_dependent(x, g, cpu=merged, default=_product)
    return dx, dkernel


def _product(x: Array, g: Array) -> Array:
    leading = tuple(range(x.ndim - 1))
    return jax.lax.dot_general(x, g, ((leading, leading), ((), ())))


def _merged_product(x: Array, g: Array) -> Array:
    return _product(x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1]))


_matmul.defvjp(_forward, _backward)
