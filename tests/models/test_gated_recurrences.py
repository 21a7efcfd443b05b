"""Tests Gated SSM, Gated SSM+ and Birdie SSM against their equations, one token at a time in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.models.birdie_ssm import BirdieSSM
from birdie_jax.models.gated_ssm import GatedSSM
from birdie_jax.models.layout import packed_layout
from tests.models.conftest import tiered
from tests.quick_jit import quick_jit

FEATURES, STATE, TAPS = 6, 8, 3
FLOAT32 = jnp.dtype("float32")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def convolved(kernel, x, segments):
    """Return the short convolution within samples."""
    y = np.zeros_like(x)
    for t in range(len(x)):
        for k in range(min(len(kernel), t + 1)):
            y[t] += kernel[k] * x[t - k] * (segments[t] == segments[t - k] > 0)
    return y


def gated_ssm(params, x, segments):
    """Return the decay f, the input of the state, and the output gate."""
    o = gelu(x @ params["output_gate"]["kernel"])
    if "convolution" in params:
        x = convolved(params["convolution"]["kernel"], x, segments)
    i = sigmoid(x @ params["input_gate"]["kernel"])
    f = sigmoid(x @ params["forget_gate"]["kernel"] + params["forget_bias"])
    return f, i * (x @ params["input"]["kernel"]), o


def birdie_ssm(params, x, segments):
    """Return the same as `gated_ssm`, with an output gate of one."""
    return sigmoid(x @ params["forget_gate"]["kernel"]), np.tanh(x @ params["input"]["kernel"]), 1.0


def gated(bidirectional, conv_width):
    return GatedSSM(FEATURES, STATE, conv_width, bidirectional, FLOAT32, FLOAT32)


def birdie(bidirectional):
    return BirdieSSM(FEATURES, STATE, "tanh", bidirectional, FLOAT32, FLOAT32)


@pytest.mark.parametrize("bidirectional", tiered({True}, [True, False]))
@pytest.mark.parametrize(
    ("make", "options", "gates"),
    [(gated, (0,), gated_ssm), (gated, (TAPS,), gated_ssm), (birdie, (), birdie_ssm)],
    ids=["gated_ssm", "gated_ssm_plus", "birdie_ssm"],
)
def test_outputs_match_the_equations(make, options, gates, bidirectional, packed):
    layout = packed_layout(packed.segment_ids, packed.bidirectional)
    x = np.random.default_rng(0).normal(size=(1, packed.tokens.shape[1], FEATURES))
    module, inputs = make(bidirectional, *options), jnp.asarray(x, FLOAT32)
    params = quick_jit(module.init)(jax.random.key(0), inputs, layout)["params"]
    # Some parameters start small or at zero, so a wrong use of them would have no effect.
    params = jax.tree.map(
        lambda leaf: leaf + 0.5 * jnp.sin(jnp.arange(leaf.size)).reshape(leaf.shape), params
    )
    found, _ = quick_jit(module.apply)({"params": params}, inputs, layout)

    exact = jax.tree.map(lambda leaf: np.asarray(leaf, float), params)
    f, entering, o = gates(exact, x[0], np.asarray(layout.segment_ids[0]))
    h, length = np.zeros_like(f), len(f)
    for channel in range(STATE):
        in_reverse = bidirectional and channel >= STATE // 2
        reset = (layout.reverse_reset if in_reverse else layout.forward_reset)[0]
        state = 0.0
        for t in reversed(range(length)) if in_reverse else range(length):
            state = (0.0 if reset[t] else f[t, channel] * state) + entering[t, channel]
            h[t, channel] = state
    expected, of_samples = (o * h) @ exact["out"]["kernel"], np.asarray(layout.segment_ids[0] > 0)
    np.testing.assert_allclose(found[0, of_samples], expected[of_samples], rtol=1e-4, atol=1e-4)
