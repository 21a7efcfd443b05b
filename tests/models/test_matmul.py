"""Tests the matrix product of projections against the plain product."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.models import layers
from birdie_jax.models.language_model import token_scores
from birdie_jax.models.layers import TRANSPOSED, Projection, matmul, transposed_kernels


@pytest.mark.parametrize("leading", [(), (5,), (2, 3), (2, 3, 4)])
def test_value_and_gradients_match_the_plain_product(leading):
    keys = jax.random.split(jax.random.key(0), 3)
    x, kernel = jax.random.normal(keys[0], (*leading, 6)), jax.random.normal(keys[1], (6, 7))
    weights = jax.random.normal(keys[2], (*leading, 7))

    y, pull = jax.vjp(matmul, x, kernel)
    dx, dkernel = pull(weights)

    rows, cotangents = np.reshape(x, (-1, 6)).astype(float), np.reshape(weights, (-1, 7)).astype(float)
    np.testing.assert_allclose(np.reshape(y, (-1, 7)), rows @ np.asarray(kernel, float), atol=1e-5)
    np.testing.assert_allclose(np.reshape(dx, (-1, 6)), cotangents @ np.asarray(kernel, float).T, atol=1e-5)
    np.testing.assert_allclose(dkernel, rows.T @ cotangents, atol=1e-5)


def test_the_products_for_cpus_and_accelerators_agree():
    x = jax.random.normal(jax.random.key(0), (2, 3, 6))
    g = jax.random.normal(jax.random.key(1), (2, 3, 7))
    np.testing.assert_allclose(
        layers._kernel_gradient(x, g), layers._merged_kernel_gradient(x, g), atol=1e-6
    )


def test_a_projection_uses_its_transposed_kernel():
    x, kernel = jax.random.normal(jax.random.key(0), (5, 1, 6)), jnp.arange(42.0).reshape(6, 7)
    kernels = transposed_kernels(
        {"a": {"kernel": kernel, "bias": jnp.ones(7)}, "b": {"scale": jnp.ones(7)}}
    )
    assert jax.tree.map(jnp.shape, kernels) == {"a": {"kernel": (7, 6)}, "b": {}}
    layer = Projection(7, ("features", "inner"), jnp.dtype(jnp.float32))
    y = layer.apply({"params": {"kernel": 0 * kernel}, TRANSPOSED: kernels["a"]}, x)
    np.testing.assert_allclose(y, x @ kernel, rtol=1e-5)


def test_scores_of_few_tokens_match_scores_of_many():
    hidden = jax.random.normal(jax.random.key(0), (40, 1, 6))
    table = jax.random.normal(jax.random.key(1), (9, 6))
    few = jnp.concatenate([token_scores(hidden[:8], table), token_scores(hidden[8:], table)])
    np.testing.assert_allclose(few, token_scores(hidden, table), atol=1e-5)


def test_types_match_the_inputs():
    x, kernel = jnp.ones((2, 3, 6), jnp.bfloat16), jnp.ones((6, 7), jnp.bfloat16)
    y, pull = jax.vjp(matmul, x, kernel)
    assert y.dtype == jnp.bfloat16
    assert [leaf.dtype for leaf in pull(y)] == [jnp.bfloat16, jnp.bfloat16]
