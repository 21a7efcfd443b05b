"""Tests the RG-LRU against its equations, for each token and channel in float64, in both directions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.models.layout import packed_layout
from birdie_jax.models.rg_lru import RGLRU
from pallas_kernels.gated_scan.cell import MAX_ROOT_SLOPE, bounded_sqrt
from tests.quick_jit import quick_jit

STATE, HEADS = 8, 2


def logistic(x):
    return 1 / (1 + np.exp(-x))


def by_token(params, x, layout, bidirectional):
    """Return h of one row, computed with loops."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, float), params)
    width = STATE // HEADS

    def gate(name, t, channel):
        head = channel // width
        inputs = x[t, head * width : (head + 1) * width]
        return logistic(
            inputs @ params[name]["kernel"][head, :, channel % width] + params[name]["bias"][channel]
        )

    h = np.zeros_like(x)
    length = len(x)
    for channel in range(STATE):
        in_reverse = bidirectional and channel >= STATE // 2
        reset = (layout.reverse_reset if in_reverse else layout.forward_reset)[0]
        state = 0.0
        for t in reversed(range(length)) if in_reverse else range(length):
            a = np.exp(
                -8 * gate("recurrence_gate", t, channel) * np.log1p(np.exp(params["decay"][channel]))
            )
            a = 0.0 if reset[t] else a
            state = a * state + np.sqrt(1 - a**2) * gate("input_gate", t, channel) * x[t, channel]
            h[t, channel] = state
    return h


@pytest.mark.sampled
@pytest.mark.parametrize("bidirectional", [True, False])
def test_states_match_the_equations(bidirectional, packed):
    layout = packed_layout(packed.segment_ids, packed.bidirectional)
    x = np.random.default_rng(0).normal(size=(1, packed.tokens.shape[1], STATE))
    module = RGLRU(HEADS, bidirectional, jnp.dtype("float32"), jnp.dtype("float32"))
    variables = quick_jit(module.init)(jax.random.key(0), jnp.asarray(x, jnp.float32), layout)
    # Biases start at zero and the state forgets slowly, so errors in either would have no effect.
    moved = jax.tree.map(
        lambda leaf: leaf + 0.5 * jnp.sin(7 * jnp.arange(leaf.size)).reshape(leaf.shape), variables
    )
    h, _ = quick_jit(module.apply)(moved, jnp.asarray(x, jnp.float32), layout)
    expected = by_token(moved["params"], x[0], layout, bidirectional)
    np.testing.assert_allclose(h[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_initial_squared_radii_are_uniform(packed):
    layout = packed_layout(packed.segment_ids, packed.bidirectional)
    x = jnp.zeros((1, packed.tokens.shape[1], 4096))
    module = RGLRU(512, False, jnp.dtype("float32"), jnp.dtype("float32"))
    decay = quick_jit(module.init)(jax.random.key(0), x, layout)["params"]["decay"]
    squares = np.exp(-2 * np.logaddexp(0, np.asarray(decay, float)))
    low, high = 0.9**2, 0.999**2
    assert low - 1e-6 <= squares.min() < low + 0.001
    assert high - 0.001 < squares.max() <= high + 1e-6
    np.testing.assert_allclose(
        np.quantile(squares, [0.25, 0.5, 0.75]), np.linspace(low, high, 5)[1:4], atol=0.01
    )


def test_the_root_has_a_bounded_derivative():
    x = jnp.array([0.0, 1e-12, 0.25, 1.0])
    np.testing.assert_allclose(bounded_sqrt(x), [0, 1e-6, 0.5, 1], rtol=1e-6)
    slopes = jax.vmap(jax.grad(bounded_sqrt))(x)
    np.testing.assert_allclose(slopes, [MAX_ROOT_SLOPE, MAX_ROOT_SLOPE, 1, 0.5], rtol=1e-6)
