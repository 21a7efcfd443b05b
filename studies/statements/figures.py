"""What statements show: intervals, outcomes of conditions, and counts as words."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from birdie_jax.comparison.seed_interval import seed_interval
from studies.retrieval.conditions import Condition, Results
from studies.retrieval.plans import DEFAULT_MODEL, Scale
from studies.retrieval.worth import Outcome, outcome_of, times_of
from studies.seed_statistics import log_rank, median_time

_WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

Read = Callable[[Outcome], float]
Name = Condition | str
"""A condition; of the default model by its procedure alone."""


def J(one: Outcome) -> float:  # noqa: N802 - the name of the objective
    """Return J in nats."""
    return one.objective


def bits(one: Outcome) -> float:
    """Return the bits a byte of held-out text."""
    return one.bits


def f1(one: Outcome) -> float:
    """Return F1 on passages, in per cent."""
    return 100 * one.f1


def copying(one: Outcome) -> float:
    """Return the per cent of tokens copied without fine-tuning."""
    return 100 * one.copying


def copied(one: Outcome) -> float:
    """Return the per cent of answers on two entries that are a number of the book."""
    return 100 * one.copied


def exact(entries: int) -> Read:
    """Return a function that returns the per cent of answers that are exactly right."""
    return lambda one: 100 * one.exact[f"entries_{entries}"]


def loss(name: str) -> Read:
    """Return a function that returns the validation loss of a class, in nats."""
    return lambda one: one.losses[name]


class Gap(NamedTuple):
    """A mean difference over seeds with its 95 % t-interval; as text, it is the interval.

    Attributes:
        mean: the mean difference.
        low: the lower end of the interval.
        high: the upper end of the interval.
    """

    mean: float
    low: float
    high: float

    def __format__(self, form: str) -> str:
        """Return the two ends of the interval."""
        return f"{self.low:{form}} to {self.high:{form}}"


def gap(differences: Sequence[float]) -> Gap:
    """Return the mean of paired differences with its interval."""
    found = seed_interval(np.array(differences))
    return Gap(found.mean, found.low, found.high)


class Outcomes:
    """The outcomes of a scale of `studies.retrieval`, by condition and seed."""

    def __init__(self, scale: Scale, results: Results) -> None:
        """Read the outcomes of results."""
        self._found: dict[Condition, dict[int, Outcome]] = {}
        for run, result in results.items():
            of_condition = self._found.setdefault(Condition(run.model, run.procedure), {})
            of_condition[run.seed] = outcome_of(result, scale.phonebook_tuning.steps)

    def by_seed(self, name: Name) -> dict[int, Outcome]:
        """Return the outcome of each seed of a condition."""
        return dict(sorted(self._found[_condition(name)].items()))

    def of(self, name: Name) -> list[Outcome]:
        """Return the outcomes of a condition by seed."""
        return list(self.by_seed(name).values())

    def mean(self, read: Read, name: Name) -> float:
        """Return the mean of a measure over the seeds of a condition."""
        return float(np.mean([read(one) for one in self.of(name)]))

    def gap(self, read: Read, first: Name, second: Name) -> Gap:
        """Return how far a condition is above another one by a measure, paired by their common seeds."""
        return gap([read(one) - read(other) for one, other in self._pairs(first, second)])

    def p(self, first: Name, second: Name) -> float:
        """Return p of the log-rank test of the steps to half right, over their common seeds."""
        one, other = zip(*self._pairs(first, second), strict=True)
        return log_rank(times_of(one), times_of(other))

    def _pairs(self, first: Name, second: Name) -> list[tuple[Outcome, Outcome]]:
        one, other = self.by_seed(first), self.by_seed(second)
        return [(one[seed], other[seed]) for seed in one if seed in other]


def _condition(name: Name) -> Condition:
    return Condition(DEFAULT_MODEL, name) if isinstance(name, str) else name


def medians(outcomes: Iterable[Outcome]) -> list[float | None]:
    """Return the median steps to half right of each run; None if it does not get there."""
    return [one.median for one in outcomes]


def reached(outcomes: Iterable[Outcome]) -> list[float]:
    """Return the median steps of the runs that get to half right, the fastest first."""
    return sorted(steps for steps in medians(outcomes) if steps is not None)


def median(outcomes: Iterable[Outcome]) -> float:
    """Return the median over runs of their steps to half right; infinite if it is censored."""
    found = median_time(medians(outcomes))
    return float("inf") if found is None else found


def tunings(outcomes: Iterable[Outcome]) -> list[float]:
    """Return the steps of all fine-tunings that get to half right, the fastest first."""
    return sorted(steps for one in outcomes for steps in one.times if steps is not None)


def word(count: int) -> str:
    """Return a count from 0 to 9 as a word."""
    return _WORDS[count]


def of_runs(count: int, runs: int) -> str:
    """Return how many of the runs: "all six", "none of six"."""
    return f"all {word(runs)}" if count == runs else f"{word(count)} of {word(runs)}"


def got_there(outcomes: Sequence[Outcome]) -> str:
    """Return how many of the runs get to half right."""
    return of_runs(len(reached(outcomes)), len(outcomes))


def ends(values: Iterable[float]) -> tuple[float, float]:
    """Return the smallest and the largest value."""
    found = list(values)
    return min(found), max(found)


def listed(values: Iterable[object], form: str) -> str:
    """Return each different value once, with commas and an "and"."""
    *first, last = dict.fromkeys(f"{value:{form}}" for value in values)
    return f"{', '.join(first)} and {last}" if first else last


def by_seed(values: Iterable[float | None], form: str) -> str:
    """Return the value of each seed, with commas; `never` for None."""
    return ", ".join("never" if value is None else f"{value:{form}}" for value in values)


Records = Mapping[tuple[str, str], Mapping[Any, Mapping[str, Any]]]
"""The results of every run, by the name of the study and of the scale."""
