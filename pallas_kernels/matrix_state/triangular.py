"""The inverse of a unit lower triangular matrix, precise even if powers of its entries would overflow."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Matrices = Float[Array, "batch rows rows"]

# Fewer rows are a part of a tile of a TPU.
TILE_ROWS = 8

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


def cast_einsum(equation: str, left: Array, right: Array, *, dtype: jnp.dtype) -> Array:
    """Compute an einsum of two operands cast to `dtype`, with float32 sums."""
    return jnp.einsum(
        equation,
        left.astype(dtype),
        right.astype(dtype),
        preferred_element_type=jnp.float32,
        precision="highest" if dtype == jnp.float32 else None,
    )


def product(equation: str, left: Array, right: Array, *, dtype: jnp.dtype) -> Array:
    """Compute `cast_einsum`; the products of its derivative cast their operands too.

    JAX's derivative would multiply the float32 cotangent, which takes a TPU twice the cycles.
    """
    return _product_in(equation, dtype, left, right)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _product_in(equation, dtype, left, right):
    return cast_einsum(equation, left, right, dtype=dtype)


def _product_forward(equation, dtype, left, right):
    return cast_einsum(equation, left, right, dtype=dtype), (left, right)


def _product_backward(equation, dtype, operands, cotangent):
    left, right = operands
    of_operands, of_result = equation.split("->")
    of_left, of_right = of_operands.split(",")
    dleft = cast_einsum(f"{of_result},{of_right}->{of_left}", cotangent, right, dtype=dtype)
    dright = cast_einsum(f"{of_left},{of_result}->{of_right}", left, cotangent, dtype=dtype)
    return dleft.astype(left.dtype), dright.astype(right.dtype)


_product_in.defvjp(_product_forward, _product_backward)


def masked_inverse(
    A: Float[Array, "rows rows"], *, upper: bool | None, exact: bool
) -> Float[Array, "rows rows"]:
    """Return (I + A)^-1 of a strictly triangular A, with products that suit a kernel.

    The algorithm merges blocks like `unit_lower_inverse`. With X the inverses of the diagonal blocks of one
    size, and A' the entries of A that join two of them, the next X is X - X A' X. X A' has the entries of
    X A at the places of A'. Of each pair of blocks, only rows of the second change, or of the first if A is
    upper triangular.

    Args:
        A: the matrix; its side is a power of two.
        upper: whether A is upper triangular. If None, A can be either, and products have all rows, for
            kernels that cannot take some.
        exact: whether the products have float32 precision, which takes six passes of bfloat16. Otherwise
            they take three passes and have an error of about 1e-5.
    """
    side = A.shape[0]
    row, column = (jax.lax.broadcasted_iota(jnp.int32, A.shape, axis) for axis in (0, 1))
    multiply = _multiply_exactly if exact else _multiply_in_three
    X = jnp.where(row == column, 1.0, jnp.where(_block(row, 1) == _block(column, 1), -A, 0.0))
    for level in range(1, side.bit_length() - 1):
        size = 1 << level
        changing, merge = _all_rows if upper is None or size < TILE_ROWS else _rows_of(side, size, upper)
        joins = _block(changing(row), level) ^ 1 == _block(changing(column), level)
        Y = changing(X)
        X = merge(X, Y - multiply(jnp.where(joins, multiply(Y, A), 0.0), X))
    return X


def masked_inverse_flops(side: int, passes: int) -> int:
    """Return the FLOPs of `masked_inverse` of a matrix that is known to be lower or upper triangular."""
    sizes = [1 << level for level in range(1, side.bit_length() - 1)]
    rows = sum(side if size < TILE_ROWS else side // 2 for size in sizes)
    return passes * 2 * 2 * rows * side**2


def _block(index: Int[Array, "rows columns"], level: int) -> Int[Array, "rows columns"]:
    """Return the number of the block of 2^level rows or columns."""
    return jax.lax.shift_right_logical(index, level)


_all_rows = (lambda array: array, lambda array, changed: changed)


def _rows_of(side: int, size: int, upper: bool) -> tuple[Callable[..., Array], Callable[..., Array]]:
    """Return a function that takes the changing rows of a matrix, and one that puts them back.

    Of each pair of blocks of `size` rows, the second changes, or the first if `upper`.
    """

    def blocks(array: Array, start: int) -> list[Array]:
        return [array[row : row + size] for row in range(start, side, 2 * size)]

    def changing(array: Array) -> Array:
        return jnp.concatenate(blocks(array, 0 if upper else size))

    def merge(array: Array, changed: Array) -> Array:
        new, old = jnp.split(changed, side // (2 * size)), blocks(array, size if upper else 0)
        pairs = zip(new, old, strict=True) if upper else zip(old, new, strict=True)
        return jnp.concatenate([block for pair in pairs for block in pair])

    return changing, merge


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
