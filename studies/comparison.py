"""Differences between two arms, paired by seeds and questions, with bootstrap intervals over both."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from birdie_jax.evaluation_record import Interval
from studies.verbs import StudyError

_RESAMPLES = 2000
_TAILS = (2.5, 97.5)


class Scored(NamedTuple):
    """The scores of one arm on a task, over seeds.

    Attributes:
        scores: a score of each seed and question; NaN where a model could not be asked.
        weights: what each question counts.
    """

    scores: Float[np.ndarray, "seeds questions"]
    weights: Float[np.ndarray, " questions"]


def gather(measures: Sequence[Mapping[str, Any]], metric: str) -> Scored:
    """Return the scores of several runs on a task.

    Args:
        measures: what `workdirs.measured` returns of the task, for each seed.
        metric: the metric.

    Raises:
        StudyError: the runs were not asked the same.
    """
    asked = {measure["questions_sha256"] for measure in measures}
    if len(asked) != 1:
        raise StudyError(
            f"{measures[0]['task']}: found {len(asked)} different sets of questions; allowed: results of "
            "runs that were asked the same"
        )
    return Scored(
        np.array([measure["scores"][metric] for measure in measures], np.float64),
        np.array(measures[0]["weights"], np.float64),
    )


def by_group(scored: Scored, values: Sequence[int]) -> dict[int, Scored]:
    """Return scores by the value of a group that each question has."""
    found = np.array(values)
    return {
        int(value): Scored(scored.scores[:, found == value], scored.weights[found == value])
        for value in np.unique(found)
    }


def mean_with_interval(scored: Scored, seed: int = 0) -> Interval:
    """Return the mean with its 95 % interval over seeds and questions."""
    return _bootstrap(scored.scores, scored.weights, seed)


def paired_difference(first: Scored, second: Scored, seed: int = 0) -> Interval:
    """Return the second mean minus the first with its 95 % interval over seeds and questions.

    A resample draws seeds with replacement and questions with replacement, and takes of both arms the
    scores of what was drawn; with one seed the interval is over questions alone.

    Args:
        first: the scores of one arm, whose rows are the same seeds as those of the other.
        second: the scores of the other arm.
        seed: the seed of the resamples.

    Raises:
        StudyError: the arms differ in seeds or questions.
    """
    if first.scores.shape != second.scores.shape:
        raise StudyError(
            f"paired difference: found {first.scores.shape} and {second.scores.shape} seeds and questions; "
            "allowed: the same of both"
        )
    return _bootstrap(second.scores - first.scores, first.weights, seed)


def _bootstrap(
    scores: Float[np.ndarray, "seeds questions"], weights: Float[np.ndarray, " questions"], seed: int
) -> Interval:
    """Return the weighted mean with a percentile interval (Efron 1979) of crossed resamples."""
    of_seeds, counts = _resamples(*scores.shape, seed)
    of_questions = counts * weights
    # Sum over s and q of count[s] * count[q] * score[s, q].
    sums = np.einsum("rs,sq,rq->r", of_seeds, scores, of_questions, optimize=True)
    totals = of_seeds.sum(axis=1) * of_questions.sum(axis=1)
    kept = totals > 0
    low, high = np.percentile(sums[kept] / totals[kept], _TAILS)
    mean = (scores @ weights).mean() / weights.sum()
    return Interval(float(mean), float(low), float(high))


@functools.lru_cache(maxsize=16)
def _resamples(
    seeds: int, questions: int, seed: int
) -> tuple[Int[np.ndarray, "resamples seeds"], Int[np.ndarray, "resamples questions"]]:
    """Return how often each resample draws each seed and each question; most tables draw the same."""
    rng = np.random.default_rng(seed)
    of_seeds = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=_RESAMPLES)
    return of_seeds, rng.multinomial(questions, np.full(questions, 1 / questions), size=_RESAMPLES)
