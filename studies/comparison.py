"""Mean scores and paired differences of arms, with intervals over seeds, or over questions for one seed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from birdie_jax.comparison.seed_interval import seed_interval
from birdie_jax.evaluation_record import Interval
from birdie_jax.tasks.bootstrap import bootstrap_means
from studies.verbs import StudyError


class Scored(NamedTuple):
    """The scores of one arm on a task, over seeds.

    Attributes:
        scores: the score of each seed on each question; NaN if a model cannot answer the question.
        weights: the weight of each question.
    """

    scores: Float[np.ndarray, "seeds questions"]
    weights: Float[np.ndarray, " questions"]


def gather(measures: Sequence[Mapping[str, Any]], metric: str) -> Scored:
    """Return the scores of several runs on a task.

    Args:
        measures: the measurement of the task for each seed, as `workdirs.measured` returns it.
        metric: the name of the metric.

    Raises:
        StudyError: the runs have different questions.
    """
    sets = {measure["questions_sha256"] for measure in measures}
    if len(sets) != 1:
        raise StudyError(
            f"{measures[0]['task']}: found {len(sets)} different sets of questions; allowed: results of "
            "runs with the same questions"
        )
    return Scored(
        np.array([measure["scores"][metric] for measure in measures], np.float64),
        np.array(measures[0]["weights"], np.float64),
    )


def by_group(scored: Scored, values: Sequence[int]) -> dict[int, Scored]:
    """Group the scores by a value of each question."""
    found = np.array(values)
    return {
        int(value): Scored(scored.scores[:, found == value], scored.weights[found == value])
        for value in np.unique(found)
    }


def mean_with_interval(scored: Scored) -> Interval:
    """Return the mean over seeds with its 95 % interval.

    With two or more seeds this is a t-interval over the seeds' means. With one seed it is a bootstrap
    interval over the questions, which does not cover the variation between seeds.
    """
    of_seeds = scored.scores @ scored.weights
    if len(of_seeds) > 1:
        interval = seed_interval(of_seeds / scored.weights.sum())
    else:
        interval = bootstrap_means(scored.scores.T, scored.weights)[0]
    return replace(interval, mean=float(of_seeds.mean() / scored.weights.sum()))


def paired_difference(first: Scored, second: Scored) -> Interval:
    """Return the second mean minus the first with its 95 % interval, paired by seed and question.

    Args:
        first: the scores of one arm.
        second: the scores of the other arm, with the same seeds in the same order.

    Raises:
        StudyError: the arms differ in the number of seeds or questions.
    """
    if first.scores.shape != second.scores.shape:
        raise StudyError(
            f"paired difference: found {first.scores.shape} and {second.scores.shape} seeds and questions; "
            "allowed: the same for both"
        )
    return mean_with_interval(Scored(second.scores - first.scores, first.weights))
