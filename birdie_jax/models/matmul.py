"""The matrix product of every projection, with a derivative that XLA's CPU compiler does well.

The usual derivative of x @ w asks for (g^T x)^T. XLA's CPU compiler then writes a transposed copy of g, and
computes whatever g is fused with once more for it. As one product x^T g of two matrices the same sums
took half the time: `python -m benchmarks.projection_gradient`.
"""

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from birdie_jax.models.axes import mesh_size

NAME = "projection"


def dot_general(
    x: Array, kernel: Array, dimension_numbers: tuple, precision: jax.lax.Precision | None = None
) -> Array:
    """Return x @ kernel over the last axis of `x`; for `nn.Dense(dot_general=...)`.

    Args:
        x: [..., inputs].
        kernel: [inputs, outputs], in the type of `x`.
        dimension_numbers: what `nn.Dense` asks for, which must be just that product.
        precision: must be None, the platform's own.

    Raises:
        ValueError: another contraction or precision is asked for.
    """
    if dimension_numbers != (((x.ndim - 1,), (0,)), ((), ())):
        raise ValueError(f"matmul: only x @ kernel is computed here; found {dimension_numbers}")
    if precision is not None:
        raise ValueError(f"matmul: precision must be None; found {precision!r}")
    # Rematerialisation by primitive does not see the product inside a function with its own derivative.
    return checkpoint_name(_matmul(x, kernel), NAME)


@jax.custom_vjp
def _matmul(x, kernel):
    return jax.lax.dot_general(x, kernel, (((x.ndim - 1,), (0,)), ((), ())))


def _forward(x, kernel):
    return _matmul(x, kernel), (x, kernel)


def _backward(residuals, g):
    x, kernel = residuals
    dx = jax.lax.dot_general(g, kernel, (((g.ndim - 1,), (1,)), ((), ())))
    # Elsewhere the axes stay apart: merging rows and length would gather what a mesh holds apart.
    merged = _product if mesh_size("sequence") > 1 else _merged_product
    dkernel = jax.lax.platform_dependent(x, g, cpu=merged, default=_product)
    return dx, dkernel


def _product(x, g):
    leading = tuple(range(x.ndim - 1))
    return jax.lax.dot_general(x, g, ((leading, leading), ((), ())))


def _merged_product(x, g):
    return _product(x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1]))


_matmul.defvjp(_forward, _backward)
