"""The kept tokens of packed rows, compared with a sort in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.pruning.policies import POLICIES, ScoredLayer
from birdie_jax.pruning.samples import gather, gather_order, kept_mask, quotas, share_of, whole_rows
from birdie_jax.pruning.settings import check_shares, constant_shares, kept_tokens, linear_shares

LENGTH = 40


def packed_row(rng):
    """Return segment ids, contexts and protected tokens of a row of samples with padding between them."""
    segments, context = np.zeros((2, LENGTH), np.int32)
    place, sample = 0, 0
    while place < LENGTH - 4:
        count = int(rng.integers(1, 12))
        end = min(place + count, LENGTH)
        sample += 1
        segments[place:end] = sample
        context[place : place + int(rng.integers(0, end - place + 1))] = 1
        place = end + int(rng.integers(0, 3))
    return segments, context.astype(bool)


def rows_of(segments, context):
    return whole_rows(
        jnp.asarray(segments[None]),
        jnp.asarray(context[None]),
        jnp.asarray(~context & (segments > 0))[None],
    )


def expected_kept(segments, context, score, share):
    kept = ~context & (segments > 0)
    for sample in range(1, segments.max() + 1):
        places = np.flatnonzero((segments == sample) & context)
        wanted = int(np.floor(share * np.sum(segments == sample) + 0.5)) - np.sum(
            kept & (segments == sample)
        )
        best = sorted(places, key=lambda place: (-score[place], -place))
        kept[best[: max(wanted, 0)]] = True
    return kept


@pytest.mark.slow
@given(seed=st.integers(0, 10**6), share=st.sampled_from([0.1, 0.3, 0.5, 0.77, 1.0]))
def test_each_sample_keeps_its_best_tokens(seed, share):
    rng = np.random.default_rng(seed)
    segments, context = packed_row(rng)
    # Few distinct values, so some are equal.
    score = rng.integers(0, 4, LENGTH).astype(np.float32)
    tokens = rows_of(segments, context)
    kept = np.asarray(kept_mask(tokens, jnp.asarray(score[None]), share))[0]
    np.testing.assert_array_equal(kept, expected_kept(segments, context, score, share))
    count = int(kept.sum()) + seed % 3
    if count > LENGTH:
        return
    taken = gather(tokens, jnp.asarray(kept[None]), gather_order(jnp.asarray(kept[None]), count))
    real = np.asarray(taken.segment_ids[0]) > 0
    np.testing.assert_array_equal(np.asarray(taken.index[0])[real], np.flatnonzero(kept))
    np.testing.assert_array_equal(np.asarray(taken.segment_ids[0])[real], segments[kept])
    assert not real[: count - kept.sum()].any(), "padding is on the left"


@given(seed=st.integers(0, 10**6), share=st.sampled_from([0.2, 0.5, 0.9]))
def test_all_policies_keep_the_same_number(seed, share):
    rng = np.random.default_rng(seed)
    segments, context = packed_row(rng)
    tokens = rows_of(segments, context)
    scores = jnp.asarray(rng.normal(size=(1, LENGTH)).astype(np.float32))
    counts = set()
    for name in POLICIES:
        layer = ScoredLayer(tokens, share, scores, jax.random.key(seed)[None])
        kept = kept_mask(tokens, POLICIES[name].score(layer), share)
        counts.add(tuple(np.bincount(segments[np.asarray(kept[0])], minlength=LENGTH)))
    assert len(counts) == 1


def test_tokens_that_the_baselines_keep():
    segments, context = np.ones(12, np.int32), np.arange(12) < 10
    tokens = rows_of(segments, context)

    def kept(name, share, seed=0):
        layer = ScoredLayer(tokens, share, None, jax.random.key(seed)[None])
        return np.flatnonzero(np.asarray(kept_mask(tokens, POLICIES[name].score(layer), share))[0]).tolist()

    # 6 of 12 tokens stay; two of them are protected.
    assert kept("recency", 0.5) == [6, 7, 8, 9, 10, 11]
    assert kept("uniform", 0.5) == [2, 4, 7, 9, 10, 11]
    assert kept("random", 0.5) == kept("random", 0.5)
    assert len({tuple(kept("random", 0.5, seed)) for seed in range(6)}) > 3


@pytest.mark.parametrize(("layers", "keep"), [(12, 0.5), (12, 0.7), (24, 0.1), (7, 0.93)])
def test_rows_have_room_for_the_tokens_that_stay(layers, keep):
    """Each sample of the row has another number of tokens, and this number is also a row's length."""
    lengths = np.concatenate([np.arange(1, 1500), 2 ** np.arange(11, 25) - 1, [2**24]])
    segments = jnp.arange(1, len(lengths) + 1, dtype=jnp.int32)[None]
    nothing = jnp.zeros(segments.shape, bool)
    tokens = whole_rows(segments, nothing, nothing)._replace(
        sample_tokens=jnp.asarray(lengths[None], jnp.int32)
    )
    for share in linear_shares(keep, layers):
        expected = [kept_tokens(share, length, protected=0) for length in lengths.tolist()]
        np.testing.assert_array_equal(quotas(tokens, share)[0], expected)
        assert np.abs(expected - share * lengths).max() <= 0.5 + lengths.max() / 2**20


def test_halves_are_rounded_up():
    # 258 tokens times 7 / 12 are 150.5; in float64 the share is slightly below 7 / 12.
    assert kept_tokens(linear_shares(0.5, 12)[10], 258) == 151
    tokens = jnp.arange(200)[None]
    for tenths in range(1, 11):
        for share in (tenths / 10, jnp.full(tokens.shape, tenths / 10)):
            np.testing.assert_array_equal(share_of(tokens, share), (tenths * tokens + 5) // 10)


def test_schedules():
    assert linear_shares(0.1, 4) == pytest.approx((1, 0.775, 0.55, 0.325))
    assert constant_shares(0.25, 3) == (1, 0.25, 0.25)
    assert kept_tokens(0.5, 9) == 5
    assert kept_tokens(0.001, 9) == 1
    assert kept_tokens(0.1, 9, protected=3) == 3
    assert check_shares((1.0, 0.5, 0.5), 3) is None
    for wrong in ((1.0, 0.5), (0.9, 0.5, 0.5), (1.0, 0.5, 0.6), (1.0, 0.5, 0.0)):
        assert "never rising" in (check_shares(wrong, 3) or "")
