"""Tests that a token's influence is the change in the anchor's output when its entry is zero."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.models.influence import COLLECTION, InfluenceRequest, recurrence_influence
from birdie_jax.models.layout import packed_layout
from birdie_jax.models.recurrence_influence import RecurrenceArrays, scores_by_arrays, scores_by_loop
from tests.generation.conftest import small_model
from tests.models.conftest import tiered
from tests.quick_jit import quick_jit

CHANNELS = 6


def zeroed_entries(decay, entry, gate, reset, anchor):
    """Return each entry's contribution at the anchor, from a float64 loop without that entry."""

    def output(entry):
        state = np.zeros(entry.shape[-1])
        for t in range(anchor + 1):
            state = (0 if reset[t] else decay[t]) * state + entry[t]
        return gate[anchor] * state

    whole = output(entry)
    influence = np.zeros_like(entry)
    for t in range(len(entry)):
        without = entry.copy()
        without[t] = 0
        influence[t] = whole - output(without)
    return influence, whole


def arrays(seed, length):
    rng = np.random.default_rng(seed)
    decay = rng.uniform(0.2, 1, (1, length, 2 * CHANNELS))
    return decay, rng.normal(size=decay.shape), rng.normal(size=decay.shape)


@partial(quick_jit, static_argnums=0)
def compiled_score(options, anchors, given, resets):
    return recurrence_influence(InfluenceRequest(anchors, **dict(options)), given, resets)


def score(anchors, decay, entry, gate, *resets, **options):
    given = RecurrenceArrays(*(None if x is None else jnp.asarray(x) for x in (decay, entry, gate)))
    return np.asarray(compiled_score(tuple(options.items()), anchors, given, resets))[0]


@given(seed=st.integers(0, 99), length=st.sampled_from([1, 2, 31]))
def test_scores_match_zeroed_entries(seed, length):
    decay, entry, gate = arrays(seed, length)
    anchor = length - 1
    reset = np.arange(length)[None] == length // 3
    anchors = jnp.arange(length)[None] == anchor
    influence, whole = zeroed_entries(decay[0], entry[0], gate[0], reset[0], anchor)
    np.testing.assert_allclose(influence.sum(axis=0), whole, atol=1e-9)
    for norm, expected in {
        "absolute": np.abs(influence).max(axis=-1),
        "signed": influence.max(axis=-1),
        "l2": np.linalg.norm(influence, axis=-1),
        "entry": np.linalg.norm(entry[0], axis=-1),
        "relative": np.abs(influence).max(axis=-1) / np.linalg.norm(whole),
    }.items():
        found = score(anchors, decay, entry, gate, reset, norm=norm)
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5, err_msg=norm)
    state, _ = zeroed_entries(decay[0], entry[0], np.ones_like(gate[0]), reset[0], anchor)
    found = score(anchors, decay, entry, gate, reset, readout="state")
    np.testing.assert_allclose(found, np.abs(state).max(axis=-1), atol=1e-5, rtol=1e-5)
    np.testing.assert_array_equal(found, score(anchors, decay, entry, None, reset))


# JAX compiles a program for each norm, not for each set of anchors.
by_loop, by_arrays = (quick_jit(scores, static_argnums=0) for scores in (scores_by_loop, scores_by_arrays))


@pytest.mark.parametrize("norm", ["absolute", "signed", "l2", "relative"])
@pytest.mark.parametrize("anchors", [(19,), (6, 19), (6,)], ids=str)
def test_the_loop_matches_whole_arrays(norm, anchors):
    rng = np.random.default_rng(5)
    shape = (2, 20, 24)
    decay, entry, gate = (jnp.asarray(rng.uniform(low, 1, shape)) for low in (0.2, -1, -1))
    reset = np.isin(np.arange(20), (0, 7))[None].repeat(2, axis=0)
    is_anchor = np.isin(np.arange(20), anchors)[None].repeat(2, axis=0)
    given = RecurrenceArrays(decay, entry, gate, jnp.tanh), jnp.asarray(reset), jnp.asarray(is_anchor)
    looped, expected = by_loop(norm, *given), by_arrays(norm, *given)
    assert np.abs(expected).max() > 0
    np.testing.assert_allclose(looped, expected, rtol=1e-5, atol=1e-7)


def test_reverse_channels_are_scored_at_the_first_token():
    length = 9
    decay, entry, gate = arrays(3, length)
    forward_reset = np.arange(length)[None] == 0
    reverse_reset = np.arange(length)[None] >= length - 2
    anchors = jnp.arange(length)[None] == length - 1
    half = slice(0, CHANNELS), slice(CHANNELS, None)
    ahead, _ = zeroed_entries(
        decay[0][:, half[0]], entry[0][:, half[0]], gate[0][:, half[0]], forward_reset[0], length - 1
    )
    back, _ = zeroed_entries(
        *(array[0][::-1, half[1]] for array in (decay, entry, gate)), reverse_reset[0][::-1], length - 1
    )
    one, other = np.abs(ahead).max(axis=-1), np.abs(back[::-1]).max(axis=-1)
    resets = forward_reset, reverse_reset
    both = score(anchors, decay, entry, gate, *resets, directions="both")
    np.testing.assert_allclose(both, np.maximum(one, other), rtol=1e-5, atol=1e-6)
    alone = score(anchors, decay, entry, gate, *resets)
    np.testing.assert_allclose(alone, one, rtol=1e-5, atol=1e-6)


def test_a_long_row_has_no_nan():
    decay = np.full((1, 4096, 2), 0.5)
    anchors = jnp.arange(4096)[None] == 4095
    found = score(anchors, decay, np.ones_like(decay), None, np.zeros((1, 4096), bool))
    assert np.isfinite(found).all()
    assert found[-1] == 1
    assert found[-3] == 0.25


SCORED = [(name, True) for name in ("gated_ssm_plus", "gated_ssm", "hawk", "birdie_ssm", "mamba", "mamba2")]


@pytest.mark.parametrize(
    ("name", "bidirectional"), tiered(SCORED[:1], [*SCORED, ("gated_ssm_plus", False)])
)
def test_a_packed_sample_has_the_same_scores_as_alone(name, bidirectional):
    model, params = small_model(name, bidirectional, layers=1)
    tokens = jnp.asarray(np.random.default_rng(0).integers(256, 384, (1, 24)))

    @quick_jit
    def compiled_scores(tokens, segments, context, anchors):
        layout = packed_layout(segments, context)._replace(influence=InfluenceRequest(anchors))
        _, left = model.apply(
            {"params": params}, tokens, layout, method=type(model).hidden, mutable=[COLLECTION]
        )
        (found,) = jax.tree.leaves(left)
        return found.reshape(tokens.shape)

    def scores(*arrays):
        return np.asarray(compiled_scores(*arrays))

    index = jnp.arange(24)[None]
    segments = jnp.where(index < 9, 1, jnp.where(index < 11, 0, 2))
    context = (index < 7) | ((index >= 11) & (index < 20))
    packed = scores(tokens, segments, context, (index == 8) | (index == 23))
    for part, count in ((slice(0, 9), 7), (slice(11, 24), 9)):
        own = jnp.arange(part.stop - part.start)[None]
        alone = scores(tokens[:, part], own * 0 + 1, own < count, own == own.size - 1)
        np.testing.assert_allclose(packed[:, part], alone, rtol=1e-5, atol=1e-6)
        assert alone.max() > 0
