"""Tests attention with a sliding window: the tokens that a token sees, and the ring cache of decoding."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.models.attention import AttentionConfig, packed_attention, packed_mask
from birdie_jax.models.layout import Layout, causal_layout, continued_layout, packed_layout
from birdie_jax.models.window_cache import WindowCache
from tests.models.conftest import VOCAB, compiled, tiered
from tests.quick_jit import quick_jit

WINDOW = 3
SECTION = AttentionConfig(heads=4, kv_heads=2, window=WINDOW)


def by_loops(query, key, value, batch, *, bidirectional, window):
    """Return attention in float64, one token at a time, with explicit conditions for the tokens it sees."""
    segments, context = np.asarray(batch.segment_ids[0]), np.asarray(batch.bidirectional[0])
    query, key, value = (np.asarray(part[0], np.float64) for part in (query, key, value))
    found = np.zeros(query.shape)
    for t in np.flatnonzero(segments):
        seen = []
        for s in np.flatnonzero(segments == segments[t]):
            before = t - window < s <= t
            ahead = bidirectional and context[t] and context[s] and t < s < t + window
            if before or ahead:
                seen.append(s)
        for head in range(query.shape[1]):
            shared = head * key.shape[1] // query.shape[1]
            scores = key[seen, shared] @ query[t, head] / np.sqrt(query.shape[2])
            weights = np.exp(scores - scores.max())
            found[t, head] = weights / weights.sum() @ value[seen, shared]
    return found


def projected(length, heads=4, kv_heads=2, width=4):
    keys = jax.random.split(jax.random.key(0), 3)
    counts = (heads, kv_heads, kv_heads)
    return [jax.random.normal(key, (1, length, n, width)) for key, n in zip(keys, counts, strict=True)]


@pytest.mark.parametrize("window", [1, 2, 3, 100])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_packed_attention_matches_loops(bidirectional, window, packed):
    parts = projected(packed.tokens.shape[1])
    layout = packed_layout(packed.segment_ids, packed.bidirectional)
    own = {"bidirectional": bidirectional, "window": window}
    found = packed_attention(*parts, layout, **own, implementation="xla")
    samples = np.asarray(packed.segment_ids[0]) > 0
    expected = by_loops(*parts, packed, **own)
    np.testing.assert_allclose(found[0][samples], expected[samples], rtol=1e-5, atol=1e-6)
    if window == 100:
        unbounded = packed_attention(*parts, layout, bidirectional=bidirectional, implementation="xla")
        np.testing.assert_array_equal(found, unbounded)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_gradients_of_one_sample_match_jax_with_a_local_window(bidirectional):
    parts = projected(9)
    segments = jnp.ones((1, 9), jnp.int32)
    layout = packed_layout(segments, segments > 0)
    weights = jax.random.normal(jax.random.key(1), parts[0].shape)
    reach = (WINDOW - 1, WINDOW - 1 if bidirectional else 0)

    def ours(*parts):
        own = {"bidirectional": bidirectional, "window": WINDOW}
        return jnp.vdot(weights, packed_attention(*parts, layout, **own, implementation="xla"))

    def theirs(*parts):
        return jnp.vdot(weights, jax.nn.dot_product_attention(*parts, local_window_size=reach))

    found, expected = (
        quick_jit(jax.grad(function, argnums=(0, 1, 2)))(*parts) for function in (ours, theirs)
    )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), found, expected)


@quick_jit
def extend(cache, layout, key):
    """Return the cache after a causal call, the attended values, and the mask."""
    positions = layout.positions(cache.tokens)
    mask = packed_mask(layout, False, WINDOW)
    cache, attended = cache.extended(layout, mask, positions, key, key)
    return cache, attended.values[:, :, 0, 0], attended.mask


ACTIONS = st.lists(st.sampled_from(["continue", "begin", "pad"]), min_size=12, max_size=12)


@given(ACTIONS, st.lists(st.sampled_from([1, 4]), min_size=3, max_size=12), st.data())
def test_each_token_attends_to_the_last_tokens_of_its_sample(actions, lengths, data):
    """This holds for any division of a row into calls, any padding and any skipped tokens.

    A key is the number of its token in the row, so keys identify the attended tokens.
    """
    cache, sample = WindowCache.empty((1, WINDOW, 1, 1), jnp.float32), []
    number = 0
    for length in lengths:
        count = data.draw(st.integers(0, length))
        if number + count > len(actions):
            break
        acts = actions[number : number + count]
        expected = []
        for token, act in enumerate(acts, start=number):
            if act == "begin" or (act == "continue" and sample is None):
                sample = []
            sample = None if act == "pad" else [*sample, token + 1]
            expected.append(sample and sample[-WINDOW:])
            acts[token - number] = act if act != "continue" or len(sample) > 1 or token == 0 else "begin"
        rest = length - count
        segments = np.cumsum([act != "continue" for act in acts] + [False] * rest) + 1
        padded = np.array([act == "pad" for act in acts] + [True] * rest)
        layout = Layout(
            segment_ids=jnp.asarray(np.where(padded, 0, segments)[None], jnp.int32),
            forward_reset=jnp.asarray([[act != "continue" for act in acts] + [False] * rest]),
            reverse_reset=jnp.ones((1, length), bool),
            bidirectional=jnp.zeros((1, length), bool),
            skipped=jnp.asarray(np.arange(length)[None] >= count),
        )
        key = jnp.arange(number + 1, number + 1 + length, dtype=jnp.float32).reshape(1, length, 1, 1)
        cache, values, mask = extend(cache, layout, key)
        for t, seen in enumerate(expected):
            if seen is not None:
                assert sorted(np.asarray(values[0])[np.asarray(mask[0, t])].tolist()) == seen
        number += count


@pytest.fixture(params=tiered({True}, [True, False]), ids=["bidirectional", "causal"])
def windowed(request, make):
    """Return a model with a window shorter than the samples, its variables, and a call with a cache."""
    model, variables = make(name="transformer", bidirectional=request.param, sections=(SECTION,))
    return model, variables, partial(compiled(model, "hidden"), variables)


def test_prefill_and_decoding_match_one_pass(windowed, pack):
    """The target is read one token at a time or in one call; the ring wraps around more than once."""
    model, variables, advance = windowed
    batch = pack([[(5, 7)]] * 2, length=12)
    layout = packed_layout(batch.segment_ids, batch.bidirectional)
    whole, _ = compiled(model, "hidden")(variables, batch.tokens, layout)
    first = jax.tree.map(lambda x: x[:, :6], layout)
    hidden, cache = advance(batch.tokens[:, :6], first, model.empty_cache(2))
    np.testing.assert_allclose(hidden, whole[:, :6], rtol=1e-4, atol=1e-5)
    assert jax.tree.map(jnp.shape, cache) == jax.tree.map(jnp.shape, model.empty_cache(2, 10**6))
    rest, _ = advance(batch.tokens[:, 6:], causal_layout(2, 6), cache)
    np.testing.assert_allclose(rest, whole[:, 6:], rtol=1e-4, atol=1e-5)
    for t in range(6, 12):
        hidden, cache = advance(batch.tokens[:, t : t + 1], causal_layout(2, 1), cache)
        np.testing.assert_allclose(hidden[:, 0], whole[:, t], rtol=1e-4, atol=1e-5)


def test_a_token_reaches_as_far_as_the_windows_of_its_layers(windowed):
    """Two layers with a window of three reach four tokens ahead; a bidirectional context, also back."""
    model, variables, _ = windowed
    tokens = jnp.arange(12, dtype=jnp.int32)[None] + 300
    layout = packed_layout(jnp.ones((1, 12), jnp.int32), jnp.ones((1, 12), bool))
    hidden_of = compiled(model, "hidden")
    before, _ = hidden_of(variables, tokens, layout)
    after, _ = hidden_of(variables, tokens.at[0, 6].set(VOCAB - 1), layout)
    changed = np.flatnonzero(np.abs(before - after).max(axis=2)[0] > 1e-6)
    first = 2 if model.config.bidirectional else 6
    np.testing.assert_array_equal(changed, np.arange(first, 11))


def test_skipped_tokens_change_nothing(make):
    """Rows of a batch read parts of different lengths, as when saved states continue."""
    model, variables = make(name="transformer", bidirectional=False, sections=(SECTION,))
    hidden_of = compiled(model, "hidden")
    tokens = jnp.asarray(np.random.default_rng(0).integers(256, VOCAB, (2, 4)), jnp.int32)
    context, begins = jnp.ones((2, 4), bool), jnp.array([False, True])
    _, cache = hidden_of(variables, tokens, causal_layout(2, 4), model.empty_cache(2))
    few = continued_layout(jnp.array([2, 2]), begins, context[:, :2])._replace(skipped=None)
    expected, wanted = hidden_of(variables, tokens[:, :2], few, cache)
    layout = continued_layout(jnp.array([2, 0]), begins, context)
    hidden, after = hidden_of(variables, tokens, layout, cache)
    np.testing.assert_allclose(hidden[0, :2], expected[0], rtol=1e-5, atol=1e-5)
    for found, given_leaf, wanted_leaf in zip(after, cache, wanted, strict=True):
        np.testing.assert_allclose(found[:, 0], wanted_leaf[:, 0], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(found[:, 1], given_leaf[:, 1])
