"""Statistics for a few seeds: exact tests, and times that may be censored.

Values of one seed are paired if the runs of a seed share their draws. An interval over n seeds is
`birdie_jax.comparison.seed_interval`. The questions are fixed and common to all seeds, so an interval is
about other seeds and the same questions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats
from jaxtyping import Bool, Float

# Two groups of ten; of more the p-value is that of as many permutations that are drawn.
_MAX_PERMUTATIONS = 200_000


def learned_or_not(first: tuple[int, int], second: tuple[int, int]) -> float:
    """Return the two-sided p-value of Fisher's exact test that two arms learn as often as each other.

    Args:
        first: of one arm, the runs that learned and all runs.
        second: the same of the other arm.
    """
    table = [[learned, runs - learned] for learned, runs in (first, second)]
    return float(scipy.stats.fisher_exact(table).pvalue)


class Times(NamedTuple):
    """Steps until something was reached, some of them censored.

    Attributes:
        steps: the steps at which it was reached, or after which nobody looked.
        reached: whether it was.
    """

    steps: Float[np.ndarray, " runs"]
    reached: Bool[np.ndarray, " runs"]


def censored(steps: Sequence[int | None], cap: int) -> Times:
    """Return times, given as steps; None where it was not reached within `cap` steps."""
    return Times(
        np.array([cap if step is None else step for step in steps], float),
        np.array([step is not None for step in steps]),
    )


def median_time(steps: Sequence[int | None]) -> int | None:
    """Return the median of an odd number of times; None where it is censored.

    Those that are None come after all others, whatever the cap.
    """
    if len(steps) % 2 == 0:
        raise ValueError(f"median: found {len(steps)} times; allowed: an odd number")
    found = sorted(step for step in steps if step is not None)
    return found[len(steps) // 2] if len(steps) // 2 < len(found) else None


def log_rank(first: Times, second: Times) -> float:
    """Return the two-sided p-value of the log-rank test by permutation of the runs between two arms.

    The statistic is the first arm's events less those that are expected; it is a sum over the runs of the
    arm of scores that no permutation changes: 1 for an event, less the cumulative hazard (Nelson-Aalen) of
    all runs at the run's time. All permutations are counted where they are at most 200,000. Runs of a seed
    that are alike make the test cautious, not bold.
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
    """Return the p-value of the same statistic where the two runs of each seed are exchanged, or not.

    Raises:
        ValueError: the arms have not the same number of runs.
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
    """Return the log-rank score of each run, whose sum over both arms is 0."""
    steps = np.concatenate([first.steps, second.steps])
    reached = np.concatenate([first.reached, second.reached])
    times = np.unique(steps[reached])
    at_risk = (steps[:, None] >= times).sum(axis=0)
    events = ((steps[:, None] == times) & reached[:, None]).sum(axis=0)
    hazard = (events / at_risk * (times <= steps[:, None])).sum(axis=1)
    return reached - hazard
