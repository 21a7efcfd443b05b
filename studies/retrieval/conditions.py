"""Results by condition. A condition is a model under a procedure, over its finished seeds."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from studies.comparison import Scored, by_group, gather
from studies.retrieval.fine_tuning import EXTRACTION, PHONEBOOK
from studies.retrieval.measuring import ABOVE_COMMONEST, INFILLING
from studies.retrieval.plans import LANGUAGE, PROCEDURES, Run

Results = Mapping[Run, Mapping[str, Any]]

_PRETRAINED = "pretrained"


class Condition(NamedTuple):
    """A model under a procedure.

    Attributes:
        model: the name of the model.
        procedure: the name of the procedure.
    """

    model: str
    procedure: str

    @property
    def title(self) -> str:
        """The name in tables."""
        return f"{self.model}: {PROCEDURES[self.procedure].title}"


class Measure(NamedTuple):
    """A metric that compares conditions.

    Attributes:
        title: the name in tables.
        place: the place of the tasks in results: "pretrained", "phonebook" or "extraction".
        tasks: the names of the tasks; all have equal weight.
        metric: the metric.
    """

    title: str
    place: str
    tasks: tuple[str, ...]
    metric: str


def conditions_of(results: Results) -> dict[Condition, list[int]]:
    """Return the seeds of each condition that has results, in the order of the procedures."""
    seeds: dict[Condition, list[int]] = defaultdict(list)
    for run in results:
        seeds[Condition(run.model, run.procedure)].append(run.seed)
    order = list(PROCEDURES)
    return {
        condition: sorted(seeds[condition])
        for condition in sorted(seeds, key=lambda a: (a.model, order.index(a.procedure)))
    }


def tasks_at(result: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """Return the measured tasks of a run at a place."""
    return result[_PRETRAINED] if place == _PRETRAINED else result["fine_tuned"][place]["test"]


def measures_of(result: Mapping[str, Any]) -> list[Measure]:
    """Return the metrics that compare a scale's conditions, from any result of the scale."""
    pretrained, books = tasks_at(result, _PRETRAINED), tasks_at(result, PHONEBOOK)
    cells = tuple(name for name in books if name.startswith("entries_"))
    several = tuple(name for name in books if name.startswith("numbers_"))
    recall = tuple(name for name in pretrained if name.startswith("associative_recall"))
    return [
        Measure("phone book: numbers exact", PHONEBOOK, cells, "exact_match"),
        Measure("phone book: digits right above the commonest", PHONEBOOK, cells, ABOVE_COMMONEST),
        Measure("several numbers: all exact", PHONEBOOK, several, "exact_match"),
        Measure("passages: F1", EXTRACTION, (EXTRACTION,), "f1"),
        Measure("not fine-tuned: tokens copied", _PRETRAINED, ("copying",), "token_accuracy"),
        Measure("values recalled", _PRETRAINED, recall, "token_accuracy"),
        Measure("infilling: choices right", _PRETRAINED, (INFILLING,), "accuracy"),
        Measure("held-out text, bits a byte (less is better)", _PRETRAINED, (LANGUAGE,), "bits_per_byte"),
    ]


def scores_of(results: Results, condition: Condition, seeds: Sequence[int], measure: Measure) -> Scored:
    """Return a condition's scores by a measure, with the questions of all its tasks in one row per seed."""
    found = []
    for task in measure.tasks:
        of_seeds = [tasks_at(result_of(results, condition, seed), measure.place)[task] for seed in seeds]
        scored = gather(of_seeds, measure.metric)
        found.append(Scored(scored.scores, scored.weights / scored.weights.sum()))
    return Scored(
        np.concatenate([one.scores for one in found], axis=1),
        np.concatenate([one.weights for one in found]),
    )


def result_of(results: Results, condition: Condition, seed: int) -> Mapping[str, Any]:
    """Return the result of a condition with a seed."""
    return next(
        result
        for run, result in results.items()
        if (run.model, run.procedure, run.seed) == (*condition, seed)
    )


def grouped_scores(
    results: Results, condition: Condition, measure: Measure, group: str
) -> dict[int, Scored]:
    """Return a condition's scores over all seeds by the value of a group; the measure has one task."""
    seeds = conditions_of(results)[condition]
    (task,) = measure.tasks
    one = tasks_at(result_of(results, condition, seeds[0]), measure.place)[task]
    measured = [tasks_at(result_of(results, condition, seed), measure.place)[task] for seed in seeds]
    return by_group(gather(measured, measure.metric), one["groups"][group])
