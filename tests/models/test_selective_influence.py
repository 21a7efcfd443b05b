"""Tests that a token's influence in Mamba is the change in the anchor's output when its entry is zero."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.models.influence import InfluenceRequest, recurrence_influence
from birdie_jax.models.selective_influence import SelectiveArrays, scores_by_arrays, scores_by_loop
from tests.models.conftest import tiered
from tests.quick_jit import quick_jit

CHANNELS, STATES, LENGTH = 5, 3, 17


def some_arrays(seed, length, channels=CHANNELS, states=STATES):
    rng = np.random.default_rng(seed)
    return SelectiveArrays(
        steps=rng.uniform(0.01, 0.5, (1, length, channels)),
        u=rng.normal(size=(1, length, channels)),
        A=-np.exp(rng.normal(size=(channels, states))),
        B=rng.normal(size=(1, length, states)),
        C=rng.normal(size=(1, length, states)),
    )


def zeroed_entries(given_arrays, reset, anchor):
    """Return each entry's contribution to the state [N, channels] at the anchor, from a float64 loop."""
    steps, u, A, B, _ = given_arrays
    steps, u, B = steps[0], u[0], B[0]
    entries = (steps * u)[:, None] * B[..., None]

    def state(entries):
        h = np.zeros(entries.shape[1:])
        for t in range(anchor + 1):
            h = (0 if reset[t] else np.exp(steps[t] * A.T)) * h + entries[t]
        return h

    whole = state(entries)
    added = np.zeros_like(entries)
    for t in range(len(entries)):
        without = entries.copy()
        without[t] = 0
        added[t] = whole - state(without)
    return added, whole


def score(request, arrays, *resets):
    found = recurrence_influence(
        request, jax.tree.map(jnp.asarray, arrays), tuple(map(jnp.asarray, resets))
    )
    return np.asarray(found)[0]


KINDS = [(readout, norm) for readout in ("gated", "state") for norm in ("absolute", "signed", "l2")]


@quick_jit
def scores_of_all_kinds(arrays, reset, anchors):
    requests = [InfluenceRequest(anchors, readout, norm) for readout, norm in KINDS]
    requests.append(InfluenceRequest(anchors, norm="entry"))
    return [recurrence_influence(request, arrays, (reset,))[0] for request in requests]


@given(seed=st.integers(0, 99), cut=st.integers(0, LENGTH - 1), anchor=st.integers(0, LENGTH - 1))
def test_scores_match_zeroed_entries(seed, cut, anchor):
    arrays = some_arrays(seed, LENGTH)
    reset = np.arange(LENGTH)[None] == cut
    states, whole = zeroed_entries(arrays, reset[0], anchor)
    output = np.einsum("n,tne->te", arrays.C[0, anchor], states)
    np.testing.assert_allclose(output.sum(axis=0), arrays.C[0, anchor] @ whole, atol=1e-9)
    *found, entry = scores_of_all_kinds(arrays, reset, np.arange(LENGTH)[None] == anchor)
    for (readout, norm), value in zip(KINDS, found, strict=True):
        influence = output if readout == "gated" else states.reshape(LENGTH, -1)
        expected = {
            "absolute": np.abs(influence).max(axis=-1),
            "signed": influence.max(axis=-1),
            "l2": np.linalg.norm(influence, axis=-1),
        }[norm]
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6, err_msg=f"{readout} {norm}")
    entries = (arrays.steps * arrays.u)[0, :, None] * arrays.B[0, ..., None]
    np.testing.assert_allclose(entry, np.linalg.norm(entries, axis=(1, 2)), rtol=1e-5)


def test_the_norm_relative_divides_by_all_numbers_of_the_state():
    arrays, anchor = some_arrays(0, LENGTH), LENGTH - 2
    reset = np.arange(LENGTH)[None] == 4
    states, whole = zeroed_entries(arrays, reset[0], anchor)
    request = InfluenceRequest(jnp.arange(LENGTH)[None] == anchor, "state", "relative")
    expected = np.abs(states).max(axis=(1, 2)) / np.linalg.norm(whole)
    np.testing.assert_allclose(score(request, arrays, reset), expected, rtol=1e-5, atol=1e-6)


def test_reverse_channels_are_scored_at_the_first_token():
    length = 9
    arrays = some_arrays(3, length, channels=2 * CHANNELS)
    forward_reset = np.arange(length)[None] == 0
    reverse_reset = np.arange(length)[None] >= length - 2
    anchors = jnp.arange(length)[None] == length - 1
    ahead, back = (
        SelectiveArrays(arrays.steps[..., half], arrays.u[..., half], arrays.A[half], arrays.B, arrays.C)
        for half in (slice(0, CHANNELS), slice(CHANNELS, None))
    )
    back = back.reversed_in_time()

    def expected(part, reset):
        added, _ = zeroed_entries(part, reset, length - 1)
        return np.abs(np.einsum("n,tne->te", part.C[0, -1], added)).max(axis=-1)

    one, other = expected(ahead, forward_reset[0]), expected(back, reverse_reset[0, ::-1])[::-1]
    request = InfluenceRequest(anchors, directions="both")
    both = score(request, arrays, forward_reset, reverse_reset)
    np.testing.assert_allclose(both, np.maximum(one, other), rtol=1e-5, atol=1e-6)
    alone = score(InfluenceRequest(anchors), arrays, forward_reset, reverse_reset)
    np.testing.assert_allclose(alone, one, rtol=1e-5, atol=1e-6)


# JAX compiles a program for each norm and length, not for each set of anchors.
by_loop, by_arrays = (quick_jit(scores, static_argnums=0) for scores in (scores_by_loop, scores_by_arrays))


# Two chunks of the loop and a remainder, and less than a chunk.
@pytest.mark.parametrize("length", tiered({150}, [150, 20]))
@pytest.mark.parametrize("norm", ["absolute", "signed", "l2", "relative"])
@pytest.mark.parametrize("anchors", [(-1,), (6, -1), (6,)], ids=str)
def test_the_loop_matches_whole_arrays(norm, anchors, length):
    arrays = jax.tree.map(
        lambda *rows: jnp.asarray(np.concatenate(rows), jnp.float32),
        *(some_arrays(seed, length, channels=24) for seed in (2, 3)),
    )
    arrays = arrays._replace(A=arrays.A[:24])
    reset = jnp.zeros((2, length), bool).at[:, jnp.array([0, 7])].set(True)
    is_anchor = jnp.zeros((2, length), bool).at[:, jnp.array(anchors)].set(True)
    looped, expected = (scores(norm, arrays, reset, is_anchor) for scores in (by_loop, by_arrays))
    assert np.abs(expected).max() > 0
    np.testing.assert_allclose(looped, expected, rtol=1e-5, atol=1e-7)


def test_a_long_row_has_no_nan_and_forgotten_tokens_score_zero():
    length = 4096
    one = np.ones((1, length, 2))
    # At the anchor itself the distance is 0, so exp(-1e34 * 0) is still 1.
    arrays = SelectiveArrays(one, one, np.array([[-np.log(2)], [-1e34]]), one[..., :1], one[..., :1])
    anchors = jnp.arange(length)[None] == length - 1
    found = score(InfluenceRequest(anchors), arrays, np.zeros((1, length), bool))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[[-1, -3]], [1, 0.25], rtol=1e-6)
    assert found[0] == 0


def test_no_array_is_as_wide_as_all_states():
    length, channels, states = 256, 64, 64
    shapes = jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(array.shape, jnp.float32),
        some_arrays(0, length, channels, states),
    )
    mask = jax.ShapeDtypeStruct((1, length), bool)
    for readout in ("gated", "state"):

        def influence(arrays, anchors, reset, readout=readout):
            return recurrence_influence(InfluenceRequest(anchors, readout=readout), arrays, (reset,))

        analysis = jax.jit(influence).lower(shapes, mask, mask).compile().memory_analysis()
        assert analysis.temp_size_in_bytes < length * channels * states * 4 / 4, readout
