"""The inverse of a chunk's triangular matrix, for keys on which other algorithms fail."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.matrix_state.triangular import masked_inverse, product, unit_lower_inverse
from tests.quick_jit import quick_jit

SIDE = 64


def triangle(cosine, decay):
    """Return beta K K^T below the diagonal, for beta = 0.9 and keys with a cosine of about `cosine`."""
    random = np.random.default_rng(0)
    own, shared = random.normal(size=(SIDE, 128)), random.normal(size=128)
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    keys = np.sqrt(1 - cosine) * own + np.sqrt(cosine) * shared / np.linalg.norm(shared)
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    distance = np.subtract.outer(np.arange(SIDE), np.arange(SIDE))
    return np.tril(0.9 * keys @ keys.T * decay**distance, -1)


def doubling(A):
    """Return the product of I + (-A)^(2^i), which is the inverse in exact arithmetic."""
    power, found = -A, jnp.eye(SIDE) - A
    for _ in range(5):
        power = jnp.matmul(power, power, precision="highest")
        found = found + jnp.matmul(power, found, precision="highest")
    return found


@pytest.mark.parametrize("decay", [1.0, 0.9])
@pytest.mark.parametrize("cosine", [0.0, 0.8, 1.0])
def test_the_inverse_matches_float64(cosine, decay):
    A = triangle(cosine, decay)
    expected = np.linalg.inv(np.eye(SIDE) + A)
    found = quick_jit(unit_lower_inverse)(jnp.asarray(A, jnp.float32)[None])[0]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("some_rows", [True, False])
@pytest.mark.parametrize("cosine", [0.0, 0.8, 1.0])
def test_the_masked_inverse_matches_float64(cosine, some_rows):
    """Check lower and upper triangular matrices, with the rows that change and with all."""
    A = triangle(cosine, 1.0)
    expected = np.linalg.inv(np.eye(SIDE) + A)

    def check(upper, exact, tolerance):
        invert = partial(masked_inverse, upper=upper if some_rows else None, exact=exact)
        turned, inverse = (A.T, expected.T) if upper else (A, expected)
        found = quick_jit(invert)(jnp.asarray(turned, jnp.float32))
        np.testing.assert_allclose(found, inverse, atol=tolerance)

    check(False, True, 1e-6)
    check(True, True, 1e-6)
    check(False, False, 3e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_of_derivatives_have_operands_of_the_dtype(dtype):
    left, right = jnp.ones((4, 8)), jnp.ones((8, 2), dtype)

    def total(left, right):
        return jnp.sum(product("ij,jk->ik", left, right, dtype=jnp.dtype(dtype)) ** 2)

    text = jax.jit(jax.grad(total, argnums=(0, 1))).lower(left, right).as_text()
    operands = re.findall(r"dot_general .*: \(tensor<\w+x(\w+)>, tensor<\w+x(\w+)>\)", text)
    assert operands == [({"float32": "f32", "bfloat16": "bf16"}[dtype],) * 2] * 3


def test_doubling_fails_on_similar_keys():
    A = triangle(0.8, 1.0)
    expected = np.linalg.inv(np.eye(SIDE) + A)
    found = quick_jit(doubling)(jnp.asarray(A, jnp.float32))
    assert np.abs(found - expected).max() > 1e3
    # For unrelated keys it succeeds.
    A = triangle(0.0, 1.0)
    np.testing.assert_allclose(
        quick_jit(doubling)(jnp.asarray(A, jnp.float32)), np.linalg.inv(np.eye(SIDE) + A), atol=1e-5
    )
