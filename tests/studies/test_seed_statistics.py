"""Tests the coverage of intervals over seeds, and compares tests of censored times with scipy."""

import numpy as np
import pytest
import scipy.stats

from birdie_jax.comparison.seed_interval import difference_interval, seed_interval
from studies.comparison import Scored, mean_with_interval
from studies.seed_statistics import (
    censored,
    learned_or_not,
    log_rank,
    median_time,
    paired_log_rank,
)
from studies.tables import mean_over_seeds


@pytest.mark.parametrize("seeds", [2, 3, 6])
def test_intervals_over_seeds_have_95_percent_coverage(seeds):
    """The standard error of 4,000 draws is 0.35 points. A percentile bootstrap covers about 70 %."""
    rng, covered, draws, questions = np.random.default_rng(seeds), 0, 4000, 8
    for _ in range(draws):
        of_seeds = rng.normal(0.3, 1.0, (seeds, 1))
        scored = Scored(of_seeds + rng.normal(0, 0.5, (seeds, questions)), np.ones(questions))
        interval = mean_with_interval(scored)
        covered += interval.low <= 0.3 <= interval.high
    assert covered / draws == pytest.approx(0.95, abs=0.012)


def test_the_interval_matches_scipy():
    values = np.array([0.2, 0.5, 0.1, 0.4])
    expected = scipy.stats.ttest_1samp(values, 0).confidence_interval()
    found = seed_interval(values)
    assert (found.mean, found.low, found.high) == pytest.approx(
        (values.mean(), expected.low, expected.high)
    )
    with pytest.raises(ValueError, match="found 1 seeds"):
        seed_interval(values[:1])


def test_the_interval_of_unpaired_seeds_matches_scipy():
    first, second = np.array([0.2, 0.5, 0.1, 0.4]), np.array([0.9, 0.3, 0.7])
    expected = scipy.stats.ttest_ind(second, first, equal_var=False).confidence_interval()
    found = difference_interval(first, second)
    assert found.mean == pytest.approx(second.mean() - first.mean())
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    with pytest.raises(ValueError, match="found 4 and 1 seeds"):
        difference_interval(first, second[:1])


def test_log_rank_of_many_runs_matches_scipy():
    rng = np.random.default_rng(1)
    for factor in (1.0, 1.6):
        times = [rng.exponential(scale, 60).round(2) for scale in (1.0, factor)]
        arms = [censored([one if one < 2 else None for one in arm], 2) for arm in times]
        expected = scipy.stats.logrank(
            *(scipy.stats.CensoredData.right_censored(arm.steps, ~arm.reached) for arm in arms)
        ).pvalue
        assert log_rank(*arms) == pytest.approx(expected, abs=0.02)


def test_separate_arms_have_exact_p_values():
    early, never = censored([100, 200, 300, 300, 400, 500], 4000), censored([None] * 6, 4000)
    assert log_rank(early, never) == pytest.approx(2 / 924)
    assert paired_log_rank(early, never) == pytest.approx(2 / 64)
    assert log_rank(early, early) == paired_log_rank(early, early) == pytest.approx(1)
    assert learned_or_not((6, 6), (0, 6)) == pytest.approx(2 / 924)
    with pytest.raises(ValueError, match=r"found \(6, 2\) runs"):
        paired_log_rank(early, censored([1, 2], 3))


def test_log_rank_keeps_its_level_with_many_censored_times():
    rng, found = np.random.default_rng(0), []
    for _ in range(300):
        times = rng.exponential(1.0, (2, 5))
        arms = [censored([one if one < 0.7 else None for one in arm], 1) for arm in times]
        found.append(log_rank(*arms) <= 0.05)
    assert np.mean(found) < 0.08


def test_the_median_of_censored_times():
    assert median_time([300, None, 100]) == 300
    assert median_time([None, 100, None]) is None
    assert median_time([400, 100, 200, None]) == 300
    assert median_time([100, None]) is None


def test_a_mean_without_its_rounding_errors():
    assert mean_over_seeds([0.1, 0.2, -0.3], ".3g").startswith("0 (-0.657 .. ")
    assert mean_over_seeds([-1e-17], ".1f") == "0.0"
    assert mean_over_seeds([1e-6], ".3g", " nats") == "1e-06 nats"
