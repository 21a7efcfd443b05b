"""The inverse of a unit lower triangular matrix, exact where powers of its entries would overflow."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Matrices = Float[Array, "batch rows rows"]

_product = partial(jnp.einsum, precision="highest")


def unit_lower_inverse(A: Float[Array, "*batch rows rows"]) -> Float[Array, "*batch rows rows"]:
    """Return (I + A)^-1 for strictly lower triangular A, whose side is a power of two.

    With L11, L22 the halves on the diagonal and A21 the block below, the inverse has L11^-1 and L22^-1 on
    the diagonal and -L22^-1 A21 L11^-1 below. All its factors are parts of the inverse itself. The product
    of I + (-A)^(2^i), equal on paper, has powers of A in between, which for equal keys grow as binomials
    do: in float32 it is wrong by a factor of 1e9 for 64 of them.
    """
    # The axes of the batch are one: XLA's CPU compiler (of JAX 0.10) has a limit of eight.
    return _inverse(A.reshape(-1, *A.shape[-2:])).reshape(A.shape)


def _inverse(A: Matrices) -> Matrices:
    if A.shape[-1] == 1:
        return jnp.ones_like(A)
    half = A.shape[-1] // 2
    first, second = jnp.split(_inverse(jnp.concatenate([A[:, :half, :half], A[:, half:, half:]])), 2)
    return joined(first, -_product("nij,njk,nkl->nil", second, A[:, half:, :half], first), second)


def joined(first: Matrices, below: Matrices, second: Matrices) -> Float[Array, "batch twice twice"]:
    """Return the lower triangular matrix with two blocks on its diagonal, and one below."""
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
    """Return X with (I + A) X = right, in float32, and its derivative in A and in the right-hand sides.

    With dR = (I + A)^-T dX the cotangent of A is -dR X^T.

    Args:
        dtype: the type of the operands of the products.
        inverse: (I + A)^-1, float32; it has no derivative of its own.
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
    """Return a triangular matrix with zeros on its diagonal."""
    row, column = (jax.lax.broadcasted_iota(jnp.int32, pairs.shape, axis) for axis in (0, 1))
    return jnp.where(row == column, 0.0, pairs)


def product(equation: str, *operands: Array, dtype: jnp.dtype) -> Array:
    """Return an einsum of operands of `dtype`, summed in float32."""
    precision = "highest" if dtype == jnp.float32 else None
    return jnp.einsum(
        equation,
        *(operand.astype(dtype) for operand in operands),
        preferred_element_type=jnp.float32,
        precision=precision,
    )


def masked_inverse(A: Float[Array, "rows rows"], *, exact: bool = True) -> Float[Array, "rows rows"]:
    """Return (I + A)^-1 of a strictly triangular A, lower or upper, by products of whole matrices.

    The same merging of blocks as `unit_lower_inverse`, whose small blocks have no place in a
    kernel: with X the inverses of the diagonal blocks of one side, and A' what of A joins two of them, the
    next X is X - X A' X.

    Args:
        A: the matrix, whose side is a power of two.
        exact: whether its products have float32's precision, which takes six passes of bfloat16; otherwise
            three, which leaves an error of some 1e-5.
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
    """Return a product of float32 matrices by three of their leading and trailing halves in bfloat16."""
    multiply = partial(jax.lax.dot, preferred_element_type=jnp.float32)
    (left_high, left_low), (right_high, right_low) = map(_halves, (left, right))
    return multiply(left_high, right_high) + (
        multiply(left_high, right_low) + multiply(left_low, right_high)
    )


def _halves(array: Array) -> tuple[Array, Array]:
    high = array.astype(jnp.bfloat16)
    return high, (array - high.astype(jnp.float32)).astype(jnp.bfloat16)
