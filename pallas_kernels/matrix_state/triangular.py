"""The inverse of a unit lower triangular matrix, precise even if powers of its entries would overflow."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Matrices = Float[Array, "batch rows rows"]

_product = partial(jnp.einsum, precision="highest")


def unit_lower_inverse(A: Float[Array, "*batch rows rows"]) -> Float[Array, "*batch rows rows"]:
    """Return (I + A)^-1 for a strictly lower triangular A with a power of two as its side.

    With L11, L22 the halves on the diagonal and A21 the block below, the inverse has L11^-1 and L22^-1 on
    the diagonal and -L22^-1 A21 L11^-1 below. All factors are blocks of the inverse. The product of
    I + (-A)^(2^i) is mathematically equal, but computes powers of A, which grow like binomials for equal
    keys: in float32 it is wrong by a factor of 1e9 for 64 of them.
    """
    # Merge the batch axes: XLA's CPU compiler (of JAX 0.10) supports at most eight axes.
    return _inverse(A.reshape(-1, *A.shape[-2:])).reshape(A.shape)


def _inverse(A: Matrices) -> Matrices:
    if A.shape[-1] == 1:
        return jnp.ones_like(A)
    half = A.shape[-1] // 2
    first, second = jnp.split(_inverse(jnp.concatenate([A[:, :half, :half], A[:, half:, half:]])), 2)
    return joined(first, -_product("nij,njk,nkl->nil", second, A[:, half:, :half], first), second)


def joined(first: Matrices, below: Matrices, second: Matrices) -> Float[Array, "batch twice twice"]:
    """Return the lower triangular matrix with two blocks on its diagonal and one below."""
    upper = jnp.concatenate([first, jnp.zeros_like(below)], axis=-1)
    return jnp.concatenate([upper, jnp.concatenate([below, second], axis=-1)], axis=-2)


Inverse = Callable[[Float[Array, "*batch rows rows"]], Float[Array, "*batch rows rows"]]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def solve(
    dtype: jnp.dtype,
    inverse: Float[Array, "*batch rows rows"],
    A: Float[Array, "*batch rows rows"],
    right: Float[Array, "*batch rows columns"],
) -> Float[Array, "*batch rows columns"]:
    """Solve (I + A) X = right in float32, differentiable in A and in the right-hand sides.

    With dR = (I + A)^-T dX, the cotangent of A is -dR X^T.

    Args:
        dtype: the operand dtype of the products.
        inverse: (I + A)^-1, float32; its cotangent is None.
        A: a strictly triangular matrix, float32.
        right: the right-hand sides.
    """
    return _solve_forward(dtype, inverse, A, right)[0]


def _solve_forward(dtype, inverse, A, right):
    del A
    X = product("...ij,...jk->...ik", inverse, right, dtype=dtype)
    return X, (inverse, X)


def _solve_backward(dtype, residuals, dX):
    inverse, X = residuals
    dright = product("...ji,...jk->...ik", inverse, dX, dtype=dtype)
    return None, -product("...ik,...jk->...ij", dright, X, dtype=dtype), dright


solve.defvjp(_solve_forward, _solve_backward)


def without_diagonal(pairs: Float[Array, "rows rows"]) -> Float[Array, "rows rows"]:
    """Set the diagonal of a matrix to zero."""
    row, column = (jax.lax.broadcasted_iota(jnp.int32, pairs.shape, axis) for axis in (0, 1))
    return jnp.where(row == column, 0.0, pairs)


def product(equation: str, *operands: Array, dtype: jnp.dtype) -> Array:
    """Compute an einsum of operands cast to `dtype`, with float32 sums."""
    precision = "highest" if dtype == jnp.float32 else None
    return jnp.einsum(
        equation,
        *(operand.astype(dtype) for operand in operands),
        preferred_element_type=jnp.float32,
        precision=precision,
    )


def masked_inverse(A: Float[Array, "rows rows"], *, exact: bool = True) -> Float[Array, "rows rows"]:
    """Return (I + A)^-1 of a strictly triangular A, lower or upper, with products of whole matrices.

    The algorithm merges blocks like `unit_lower_inverse`, without the small blocks that do not suit a
    kernel. With X the inverses of the diagonal blocks of one size, and A' the entries of A that join two
    of them, the next X is X - X A' X.

    Args:
        A: the matrix; its side is a power of two.
        exact: whether the products have float32 precision, which takes six passes of bfloat16. Otherwise
            they take three passes and have an error of about 1e-5.
    """
    side = A.shape[0]
    row, column = (jax.lax.broadcasted_iota(jnp.int32, A.shape, axis) for axis in (0, 1))
    X = jnp.where(row == column, 1.0, 0.0)
    multiply = _multiply_exactly if exact else _multiply_in_three
    for level in range(side.bit_length() - 1):
        pair = jax.lax.shift_right_logical(row, level + 1) == jax.lax.shift_right_logical(column, level + 1)
        apart = jax.lax.shift_right_logical(row, level) != jax.lax.shift_right_logical(column, level)
        joining = jnp.where(pair & apart, A, 0.0)
        X -= joining if level == 0 else multiply(multiply(X, joining), X)
    return X


_multiply_exactly = partial(
    jax.lax.dot, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
)


def _multiply_in_three(left: Array, right: Array) -> Array:
    """Multiply float32 matrices with three products of their high and low bfloat16 halves."""
    multiply = partial(jax.lax.dot, preferred_element_type=jnp.float32)
    (left_high, left_low), (right_high, right_low) = map(_halves, (left, right))
    return multiply(left_high, right_high) + (
        multiply(left_high, right_low) + multiply(left_low, right_high)
    )


def _halves(array: Array) -> tuple[Array, Array]:
    high = array.astype(jnp.bfloat16)
    return high, (array - high.astype(jnp.float32)).astype(jnp.bfloat16)
