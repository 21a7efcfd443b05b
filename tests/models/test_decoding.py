"""Prefill, then token by token: the logits of the whole forward pass from a state of constant size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.models import LanguageModel
from birdie_jax.models.layout import causal_layout, packed_layout
from tests.quick_jit import quick_jit

ROWS, CONTEXT, TARGET = 2, 5, 7
PREFIX = CONTEXT + 1  # and the start token


@pytest.fixture
def decoder(kind, make, pack):
    """Model, variables, batch, its full logits, and a jitted (tokens, layout, cache) -> (logits, cache)."""
    name, bidirectional = kind
    model, variables = make(name=name, bidirectional=bidirectional)
    batch = pack([[(CONTEXT, TARGET)]] * ROWS, length=CONTEXT + TARGET)

    @quick_jit
    def advance(tokens, layout, cache):
        hidden, cache = model.apply(variables, tokens, layout, cache, method=LanguageModel.hidden)
        return model.apply(variables, hidden, method=LanguageModel.logits), cache

    return model, batch, quick_jit(model.apply)(variables, batch), advance


def prefill(model, batch, advance):
    layout = packed_layout(batch.segment_ids[:, :PREFIX], batch.bidirectional[:, :PREFIX])
    return advance(batch.tokens[:, :PREFIX], layout, model.empty_cache(ROWS))


def test_decoding_gives_the_logits_of_the_forward_pass(decoder):
    model, batch, expected, advance = decoder
    logits, cache = prefill(model, batch, advance)
    np.testing.assert_allclose(logits, expected[:, :PREFIX], rtol=1e-4, atol=1e-4)
    sizes = jax.tree.map(jnp.shape, cache)
    assert sizes == jax.tree.map(jnp.shape, model.empty_cache(ROWS))
    step = causal_layout(ROWS, 1)
    for t in range(PREFIX, CONTEXT + TARGET):
        logits, cache = advance(batch.tokens[:, t : t + 1], step, cache)
        np.testing.assert_allclose(logits[:, 0], expected[:, t], rtol=1e-4, atol=1e-4)
        assert jax.tree.map(jnp.shape, cache) == sizes


def test_several_tokens_at_a_time_give_the_same(decoder):
    model, batch, expected, advance = decoder
    _, cache = prefill(model, batch, advance)
    rest = batch.tokens[:, PREFIX:]
    logits, _ = advance(rest, causal_layout(ROWS, rest.shape[1]), cache)
    np.testing.assert_allclose(logits, expected[:, PREFIX:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("bidirectional", "channels"), [(True, 8), (False, 16)])
def test_the_cache_holds_the_forward_channels_alone(make, bidirectional, channels):
    model, _ = make(name="gated_ssm_plus", bidirectional=bidirectional)
    cache = model.empty_cache(3)
    assert cache.state.shape == (2, 3, channels)
    assert cache.state.dtype == jnp.float32
    assert cache.conv_tail.shape == (2, 3, 3, 16)
