"""Statistics for a few seeds: exact tests, and censored times.

Values of one seed are paired if the runs of that seed share random numbers. An interval over n seeds is
`birdie_jax.comparison.seed_interval`. All seeds answer the same fixed questions, so an interval covers
other seeds but not other questions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats
from jaxtyping import Bool, Float

# Enough for all permutations of two groups of ten. Larger groups use as many random permutations.
_MAX_PERMUTATIONS = 200_000


def learned_or_not(first: tuple[int, int], second: tuple[int, int]) -> float:
    """Return the two-sided p-value of Fisher's exact test that two arms learn equally often.

    Args:
        first: the number of runs that learned and the number of all runs, for one arm.
        second: the same for the other arm.
    """
    table = [[learned, runs - learned] for learned, runs in (first, second)]
    return float(scipy.stats.fisher_exact(table).pvalue)


class Times(NamedTuple):
    """Steps until each run reaches a goal. Steps of runs that do not reach it are censored.

    Attributes:
        steps: the step at which a run reaches the goal, or its last observed step.
        reached: whether the run reaches the goal.
    """

    steps: Float[np.ndarray, " runs"]
    reached: Bool[np.ndarray, " runs"]


def censored(steps: Sequence[float | None], cap: int) -> Times:
    """Return times from steps. None is a run that does not reach the goal within `cap` steps."""
    return Times(
        np.array([cap if step is None else step for step in steps], float),
        np.array([step is not None for step in steps]),
    )


def median_time(steps: Sequence[float | None]) -> float | None:
    """Return the median of times; None if it is censored.

    Censored times (None) sort after all others. The median of an even number of times is the mean
    of the two middle ones, and is censored if the later one is.
    """
    found = sorted(step for step in steps if step is not None)
    later = len(steps) // 2
    if later >= len(found):
        return None
    return found[later] if len(steps) % 2 else (found[later - 1] + found[later]) / 2


def log_rank(first: Times, second: Times) -> float:
    """Return the two-sided p-value of the log-rank test, by permutation of the runs between two arms.

    The statistic is the observed minus the expected number of events of the first arm, which is the sum of
    the arm's scores. A run's score is 1 for an event and 0 otherwise, minus the cumulative hazard
    (Nelson-Aalen) of all runs at the run's time. Permutations do not change the scores. The test uses all
    permutations if there are at most 200,000. If runs of the same seed are similar, the test is
    conservative.
    """
    scores = _scores(first, second)
    return float(
        scipy.stats.permutation_test(
            (scores[: len(first.steps)], scores[len(first.steps) :]),
            lambda one, other, axis: one.sum(axis=axis),
            permutation_type="independent",
            vectorized=True,
            n_resamples=_MAX_PERMUTATIONS,
            rng=np.random.default_rng(0),
        ).pvalue
    )


def paired_log_rank(first: Times, second: Times) -> float:
    """Return the p-value of the log-rank test, by exchange of the two runs of each seed.

    Raises:
        ValueError: the arms have different numbers of runs.
    """
    if len(first.steps) != len(second.steps):
        found = len(first.steps), len(second.steps)
        raise ValueError(f"paired log-rank test: found {found} runs; allowed: as many of both arms")
    scores = _scores(first, second)
    return float(
        scipy.stats.permutation_test(
            (scores[: len(first.steps)], scores[len(first.steps) :]),
            lambda one, other, axis: one.sum(axis=axis) - other.sum(axis=axis),
            permutation_type="samples",
            vectorized=True,
            n_resamples=_MAX_PERMUTATIONS,
            rng=np.random.default_rng(0),
        ).pvalue
    )


def _scores(first: Times, second: Times) -> Float[np.ndarray, " runs"]:
    """Return the log-rank score of each run. The scores of both arms sum to 0."""
    steps = np.concatenate([first.steps, second.steps])
    reached = np.concatenate([first.reached, second.reached])
    times = np.unique(steps[reached])
    at_risk = (steps[:, None] >= times).sum(axis=0)
    events = ((steps[:, None] == times) & reached[:, None]).sum(axis=0)
    hazard = (events / at_risk * (times <= steps[:, None])).sum(axis=1)
    return reached - hazard
