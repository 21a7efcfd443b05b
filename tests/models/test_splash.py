"""Tests the kernel, in the interpreter, against attention with an explicit mask of packed samples."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.config_sections import ModelConfig
from birdie_jax.models import build_model
from birdie_jax.models.attention import AttentionConfig, packed_mask
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.models.layout import packed_layout
from birdie_jax.models.splash import last_visible, packed_splash_attention
from tests.models.conftest import tiered
from tests.quick_jit import quick_jit

LENGTH, HEADS, KV_HEADS, WIDTH = 256, 4, 2, 128


def row_of(*samples):
    """Return a row of samples, each with context, target and padding after it, then padding."""
    segments, context = [], []
    for number, (in_context, target, padding) in enumerate(samples, start=1):
        segments += [number] * (in_context + target) + [0] * padding
        context += [True] * in_context + [False] * (target + padding)
    rest = LENGTH - len(segments)
    return segments + [0] * rest, context + [False] * rest


@pytest.fixture(scope="module")
def layout():
    """Return rows with one sample, with contexts across and within blocks, and with a final context."""
    rows = [
        row_of((200, 56, 0)),
        row_of((140, 20, 3), (0, 30, 3), (30, 20, 0)),
        row_of((10, 5, 0), (100, 100, 0), (41, 0, 0)),
    ]
    segments, context = zip(*rows, strict=True)
    return packed_layout(jnp.asarray(segments, jnp.int32), jnp.asarray(context))


@pytest.mark.slow
@pytest.mark.parametrize(("bidirectional", "window"), [(True, 0), (False, 0), (False, 40)])
def test_values_and_gradients_match_attention_with_a_mask(bidirectional, window, layout):
    keys = jax.random.split(jax.random.key(0), 4)
    rows = layout.segment_ids.shape[0]
    query, cotangent = (jax.random.normal(key, (rows, LENGTH, HEADS, WIDTH)) for key in keys[:2])
    key, value = (jax.random.normal(key, (rows, LENGTH, KV_HEADS, WIDTH)) for key in keys[2:])

    def plain(query, key, value):
        mask = packed_mask(layout, bidirectional, window)[:, None]
        return jax.nn.dot_product_attention(query, key, value, mask=mask)

    settings = {"bidirectional": bidirectional, "window": window}
    kernel = partial(packed_splash_attention, layout=layout, **settings, interpret=True)

    def both(function):
        y, pull = jax.vjp(function, query, key, value)
        return y, *pull(cotangent)

    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4),
        quick_jit(partial(both, kernel))(),
        quick_jit(partial(both, plain))(),
    )


def test_last_visible_is_the_end_of_the_context_or_the_token_itself(layout):
    last = np.asarray(last_visible(layout))
    index = np.arange(LENGTH)
    mask = np.asarray(packed_mask(layout, bidirectional=True))
    np.testing.assert_array_equal(last, np.where(mask, index, -1).max(axis=2))
    assert (last[0, :200] == 199).all()
    assert (last[0, 200:] == index[200:]).all()
    assert (last[2, 215:] == LENGTH - 1).all()


@pytest.mark.parametrize("bidirectional", tiered({True}, [True, False]))
def test_a_row_without_whole_blocks_has_the_values_of_attention_with_a_mask(bidirectional):
    segments = jnp.asarray([[1] * 60 + [0] * 3 + [2] * 35 + [0] * 2], jnp.int32)
    context = jnp.asarray([[True] * 40 + [False] * 23 + [True] * 35 + [False] * 2])
    layout = packed_layout(segments, context)
    query, key, value = jax.random.normal(jax.random.key(0), (3, *segments.shape, 2, WIDTH))
    kernel = partial(packed_splash_attention, bidirectional=bidirectional, interpret=True)
    mask = packed_mask(layout, bidirectional)[:, None]
    np.testing.assert_allclose(
        quick_jit(kernel)(query, key, value, layout),
        jax.nn.dot_product_attention(query, key, value, mask=mask),
        rtol=1e-4,
        atol=1e-4,
    )


def test_parameters_are_created_with_the_kernel():
    """Initialisation reads a single token."""
    config = ModelConfig(
        name="transformer",
        layers=1,
        features=16,
        sections=(AttentionConfig(heads=4, implementation="splash"),),
    )
    assert "blocks" in parameter_shapes(build_model(config, 384))


def test_a_window_with_a_bidirectional_context_is_refused(layout):
    x = jnp.zeros((3, LENGTH, 2, WIDTH))
    with pytest.raises(
        ValueError, match="splash attention: found a window of 8 and bidirectional; allowed: 0"
    ):
        packed_splash_attention(x, x, x, layout, bidirectional=True, window=8)


@pytest.mark.parametrize("bidirectional", tiered({False}, [True, False]))
def test_a_model_has_the_same_outputs_with_either_implementation(bidirectional, make, layout):
    tokens = jax.random.randint(jax.random.key(0), layout.segment_ids.shape, 256, 384, jnp.int32)
    results = []
    for implementation in ("xla", "splash_interpret"):
        section = AttentionConfig(heads=4, kv_heads=2, implementation=implementation)
        model, variables = make(name="transformer", bidirectional=bidirectional, sections=(section,))
        results.append(quick_jit(partial(model.apply, method="hidden"))(variables, tokens, layout)[0])
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4)
