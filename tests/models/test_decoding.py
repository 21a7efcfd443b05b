"""Prefill, then token by token: the logits of the whole forward pass from a state of constant size."""

from itertools import pairwise

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
    return advance(batch.tokens[:, :PREFIX], layout, model.empty_cache(ROWS, CONTEXT + TARGET))


@pytest.mark.sampled
def test_decoding_gives_the_logits_of_the_forward_pass(decoder):
    model, batch, expected, advance = decoder
    logits, cache = prefill(model, batch, advance)
    np.testing.assert_allclose(logits, expected[:, :PREFIX], rtol=1e-4, atol=1e-4)
    sizes = jax.tree.map(jnp.shape, cache)
    assert sizes == jax.tree.map(jnp.shape, model.empty_cache(ROWS, CONTEXT + TARGET))
    step = causal_layout(ROWS, 1)
    for t in range(PREFIX, CONTEXT + TARGET):
        logits, cache = advance(batch.tokens[:, t : t + 1], step, cache)
        np.testing.assert_allclose(logits[:, 0], expected[:, t], rtol=1e-4, atol=1e-4)
        assert jax.tree.map(jnp.shape, cache) == sizes


@pytest.mark.sampled(4)
def test_several_tokens_at_a_time_give_the_same(decoder):
    model, batch, expected, advance = decoder
    _, cache = prefill(model, batch, advance)
    rest = batch.tokens[:, PREFIX:]
    logits, _ = advance(rest, causal_layout(ROWS, rest.shape[1]), cache)
    np.testing.assert_allclose(logits, expected[:, PREFIX:], rtol=1e-4, atol=1e-4)


# Where a packed row may be cut: a bidirectional model reads a context and the start token in one call.
CUTS = {False: (1, 3, 8, 9, 13, 19, 22), True: (6, 7, 12, 15, 21)}


@pytest.mark.slow
def test_a_packed_row_in_parts_gives_the_logits_of_the_whole(kind, make, packed):
    name, bidirectional = kind
    model, variables = make(name=name, bidirectional=bidirectional)
    length = packed.tokens.shape[1]
    layout = packed_layout(packed.segment_ids, packed.bidirectional)
    cache, parts = model.empty_cache(1, length), []
    for begin, end in pairwise((0, *CUTS[bidirectional], length)):
        hidden, cache = quick_jit(model.apply, static_argnames="method")(
            variables,
            packed.tokens[:, begin:end],
            jax.tree.map(lambda x, begin=begin, end=end: x[:, begin:end], layout),
            cache,
            method="hidden",
        )
        parts.append(model.apply(variables, hidden, method="logits"))
    whole = quick_jit(model.apply)(variables, packed)
    samples = packed.segment_ids[0] > 0
    result = jnp.concatenate(parts, axis=1)
    np.testing.assert_allclose(result[0, samples], whole[0, samples], rtol=1e-4, atol=1e-4)


@pytest.mark.sampled
def test_prompts_of_different_lengths_are_continued_side_by_side(decoder):
    """The shorter prompt has padding before it: all rows then end where the call ends."""
    model, batch, expected, advance = decoder
    shorter = 2
    segments = batch.segment_ids.at[1].set(jnp.roll(batch.segment_ids[1], shorter))
    move = lambda x: x.at[1].set(jnp.roll(x[1], shorter))  # noqa: E731
    tokens, bidirectional = move(batch.tokens), move(batch.bidirectional)
    segments = segments.at[1, :shorter].set(0)
    bidirectional = bidirectional.at[1, :shorter].set(False)
    layout = packed_layout(segments, bidirectional)
    prompt = PREFIX + shorter
    first = jax.tree.map(lambda x: x[:, :prompt], layout)
    logits, cache = advance(tokens[:, :prompt], first, model.empty_cache(ROWS, CONTEXT + TARGET))
    step = causal_layout(ROWS, 1)
    for t in range(prompt, CONTEXT + TARGET):
        np.testing.assert_allclose(logits[0, -1], expected[0, t - 1], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(logits[1, -1], expected[1, t - 1 - shorter], rtol=1e-4, atol=1e-4)
        logits, cache = advance(tokens[:, t : t + 1], step, cache)


def test_attention_says_how_much_room_it_needs(make):
    model, _ = make(name="transformer")
    with pytest.raises(
        ValueError, match="attention needs length, the maximum number of tokens of a row; found None"
    ):
        model.empty_cache(3)
    cache = model.empty_cache(3, 10)
    assert cache.keys.shape == cache.values.shape == (2, 3, 10, 2, 4)


@pytest.mark.slow
def test_a_call_that_cannot_fit_the_cache_is_refused(make):
    model, variables = make(name="transformer")
    tokens, layout = jnp.zeros((1, 5), jnp.int32), causal_layout(1, 5)
    message = "attention: the cache has room for 4 tokens; found a call of 5"
    with pytest.raises(ValueError, match=message):
        model.apply(variables, tokens, layout, model.empty_cache(1, 4), method="hidden")


@pytest.mark.slow
def test_a_cache_that_is_full_answers_nan(make):
    model, variables = make(name="transformer")
    tokens, layout = jnp.zeros((1, 3), jnp.int32), causal_layout(1, 3)
    hidden, cache = model.apply(variables, tokens, layout, model.empty_cache(1, 4), method="hidden")
    assert jnp.isfinite(hidden).all()
    hidden, _ = model.apply(variables, tokens, layout, cache, method="hidden")
    assert jnp.isnan(hidden).all()


@pytest.mark.parametrize("name", ["gated_ssm_plus", "hawk"])
@pytest.mark.parametrize(("bidirectional", "channels"), [(True, 8), (False, 16)])
def test_the_cache_holds_the_forward_channels_alone(make, name, bidirectional, channels):
    model, _ = make(name=name, bidirectional=bidirectional)
    cache = model.empty_cache(3)
    assert cache.state.shape == (2, 3, channels)
    assert cache.state.dtype == jnp.float32
    assert cache.conv_tail.shape == (2, 3, 3, 16)
