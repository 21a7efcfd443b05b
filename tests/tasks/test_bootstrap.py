"""Bootstrap intervals match SciPy's, and differences are paired."""

import numpy as np
import pytest
import scipy.stats

from birdie_jax.tasks import bootstrap
from birdie_jax.tasks.bootstrap import bootstrap_differences, bootstrap_means


@pytest.fixture(scope="module")
def scores():
    random = np.random.default_rng(0)
    return np.stack([random.random(200) < 0.3, random.normal(2, 1, 200)], axis=1).astype(float)


def percentile_interval(data, statistic, **options):
    found = scipy.stats.bootstrap(
        data, statistic, n_resamples=20_000, method="percentile", rng=np.random.default_rng(1), **options
    )
    return found.confidence_interval


def test_intervals_of_means_match_scipy(scores):
    found = bootstrap_means(scores, np.ones(200))
    for column, interval in zip(scores.T, found, strict=True):
        expected = percentile_interval((column,), np.mean)
        assert interval.mean == pytest.approx(column.mean())
        assert (interval.low, interval.high) == pytest.approx(tuple(expected), abs=0.015 * column.std())


def test_means_and_intervals_use_weights(scores):
    weights = np.random.default_rng(2).integers(1, 50, 200).astype(float)
    (interval,) = bootstrap_means(scores[:, 1:], weights)

    def rate(values, weight, axis=-1):
        return (values * weight).sum(axis) / weight.sum(axis)

    expected = percentile_interval((scores[:, 1], weights), rate, paired=True)
    assert interval.mean == pytest.approx(np.average(scores[:, 1], weights=weights))
    assert (interval.low, interval.high) == pytest.approx(tuple(expected), abs=0.02)


def test_differences_are_paired(scores):
    """A small gain on every question has a narrow interval, even if the questions differ much."""
    ones = np.ones(200)
    better = scores + np.random.default_rng(3).normal(0.1, 0.01, scores.shape)
    for column, interval in enumerate(bootstrap_differences(scores, better, ones, ones)):
        gain = better[:, column] - scores[:, column]
        expected = percentile_interval((gain,), np.mean)
        assert interval.mean == pytest.approx(gain.mean())
        assert (interval.low, interval.high) == pytest.approx(tuple(expected), abs=2e-4)
    same = bootstrap_differences(scores, scores, ones, ones)
    assert all((one.mean, one.low, one.high) == (0, 0, 0) for one in same)


def test_the_seed_determines_the_intervals(scores):
    ones = np.ones(200)
    assert bootstrap_means(scores, ones, 5) == bootstrap_means(scores, ones, 5)
    assert bootstrap_means(scores, ones, 5) != bootstrap_means(scores, ones, 6)


def test_resamples_in_parts_are_those_that_are_kept(scores, monkeypatch):
    hits, ones = scores[:, :1], np.ones(200)
    kept = [bootstrap_means(hits, ones) for _ in range(2)]
    monkeypatch.setattr(bootstrap, "_MAX_KEPT_ANSWERS", 0)
    monkeypatch.setattr(bootstrap, "_MAX_COUNTS", 200 * 300)
    assert kept == [bootstrap_means(hits, ones)] * 2


def test_answers_without_weight_are_refused():
    with pytest.raises(ValueError, match="found 0 answers of weight 0"):
        bootstrap_means(np.zeros((0, 1)), np.zeros(0))
    with pytest.raises(ValueError, match="without weight"):
        bootstrap_differences(np.ones((2, 1)), np.ones((2, 1)), np.zeros(2), np.ones(2))
    (one,) = bootstrap_means(np.array([[0.5]]), np.ones(1))
    assert (one.mean, one.low, one.high) == (0.5, 0.5, 0.5)
