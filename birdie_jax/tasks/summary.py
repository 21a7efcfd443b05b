"""Summaries of scored answers: means with intervals, for all answers, by group and by category."""

from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np

from birdie_jax.evaluation_record import (
    FORMAT_VERSION,
    Categories,
    CategoryScores,
    EvaluatedModel,
    EvaluationRecord,
    GroupScores,
    Interval,
    ShownAnswer,
)
from birdie_jax.storage import to_plain
from birdie_jax.tasks.bootstrap import Derive, bootstrap_differences, bootstrap_means
from birdie_jax.tasks.question import ScoredAnswer, TaskResult
from birdie_jax.tasks.task import Task

# A group with more values than this has ranges of values.
_MAX_PARTS = 12
_WIDE = 8
# The name of the metric that is 1 if the answer is the reference.
_EXACT = "exact_match"
_SHOWN, _SHOWN_CHARACTERS = 3, 400


def settings_of(task: Task) -> dict[str, Any]:
    """Return the settings of a task as plain JSON."""
    return {field.name: to_plain(getattr(task, field.name)) for field in fields(task)}


def summarise(
    name: str, task: Task, model: EvaluatedModel, result: TaskResult, *, seconds: float, seed: int = 0
) -> EvaluationRecord:
    """Return the record of an evaluation.

    Args:
        name: the name of the evaluation.
        task: the task.
        model: the evaluated model.
        result: the scored answers; none if all questions were skipped.
        seconds: the duration.
        seed: the seed of the bootstrap's resamples.
    """
    answers = result.answers
    # Predictions have no scores.
    scored = [answer for answer in answers if answer.metrics]
    groups: dict[str, list[GroupScores]] = {}
    for group in sorted({group for answer in scored for group in answer.question.groups}):
        having = [answer for answer in scored if group in answer.question.groups]
        groups[group] = _group_scores(task, group, having, seed)
    kinds = sorted({kind for answer in scored for kind in answer.question.categories})
    return EvaluationRecord(
        format_version=FORMAT_VERSION,
        name=name,
        task=task.name,
        settings=settings_of(task),
        main_metric=task.main_metric,
        model=model,
        answers=len(answers),
        refused=list(result.refused),
        metrics=mean_scores(task, answers, seed),
        groups=groups,
        seconds=seconds,
        categories={kind: _category_scores(task, kind, scored, seed) for kind in kinds},
        exact=sum(map(_is_exact, scored)) if any(_EXACT in one.metrics for one in scored) else None,
        shown=[shown_answer(one) for one in scored[:_SHOWN] if _EXACT in one.metrics],
    )


def shown_answer(answer: ScoredAnswer) -> ShownAnswer:
    """Return an answer for display, with long texts shortened."""
    question = answer.question
    reference = question.references[0] if question.references else ""
    prompt, wrote, right = map(_cut, (question.prompt, answer.answer, reference))
    return ShownAnswer(prompt, wrote, right, _is_exact(answer))


def _is_exact(answer: ScoredAnswer) -> bool:
    return answer.metrics.get(_EXACT) == 1


def _cut(text: str) -> str:
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    half = _SHOWN_CHARACTERS // 2
    return f"{text[:half]} [… {len(text) - 2 * half:,} characters …] {text[-half:]}"


def mean_scores(task: Task, answers: Sequence[ScoredAnswer], seed: int = 0) -> dict[str, Interval]:
    """Return the mean and interval of each metric and each derived metric, except inner metrics.

    The answers of a unit (`Task.unit_of`) are drawn as one. `Task.rescored` first scores the units among
    themselves.

    Args:
        task: the task.
        answers: the scored answers. The result is empty if there are none, or if they are predictions.
        seed: the seed of the bootstrap's resamples.

    Raises:
        ValueError: the answers differ in the names of their metrics.
    """
    if not any(answer.metrics for answer in answers):
        return {}
    answers = task.rescored(_units(task, answers))
    names, derived, derive = _metrics_of(task, answers[0])
    found = bootstrap_means(_scores(answers, names), _weights(answers), seed, derive)
    return _without_inner(task, [*names, *derived], found)


def paired_differences(
    task: Task, first: Sequence[ScoredAnswer], second: Sequence[ScoredAnswer], seed: int = 0
) -> tuple[dict[str, Interval], int]:
    """Return the second model's scores minus the first's, on the units that both models answered.

    A unit is a question, or what `Task.unit_of` names. `Task.rescored` first scores these units among
    themselves. The result includes derived metrics and excludes inner metrics. An answer to a prompt counts
    only if the other model has answered the same prompt under the same name: the questions of some tasks
    depend on the tokenizer, and a model may skip some questions of a unit.

    Args:
        task: the task.
        first: the scored answers of the first model.
        second: the scored answers of the second model.
        seed: the seed of the bootstrap's resamples, which both models share.

    Returns:
        The difference of the means of each metric, with its interval; and the number of units.

    Raises:
        ValueError: the answers differ in the names of their metrics.
    """
    units = _units(task, _shared(first, second))
    others = {unit.question.name: unit for unit in _units(task, _shared(second, first))}
    both = [(unit, others[unit.question.name]) for unit in units if unit.question.name in others]
    if not both:
        return {}, 0
    ours, theirs = (task.rescored(answers) for answers in zip(*both, strict=True))
    names, derived, derive = _metrics_of(task, ours[0])
    found = bootstrap_differences(
        _scores(ours, names), _scores(theirs, names), _weights(ours), _weights(theirs), seed, derive=derive
    )
    return _without_inner(task, [*names, *derived], found), len(both)


def _shared(answers: Sequence[ScoredAnswer], others: Sequence[ScoredAnswer]) -> list[ScoredAnswer]:
    """Return the answers to prompts that `others` have, and the answers without prompt."""
    asked = {(other.question.name, other.question.prompt) for other in others}
    return [
        answer
        for answer in answers
        if not answer.question.prompt or (answer.question.name, answer.question.prompt) in asked
    ]


def _units(task: Task, answers: Sequence[ScoredAnswer]) -> list[ScoredAnswer]:
    """Return an answer for each unit, with the name of the unit, in the order of their first answers."""
    parts: dict[str, list[ScoredAnswer]] = {}
    for answer in answers:
        parts.setdefault(task.unit_of(answer), []).append(answer)
    return [_joined(unit, of_unit) for unit, of_unit in parts.items()]


def _joined(unit: str, parts: Sequence[ScoredAnswer]) -> ScoredAnswer:
    named = parts[0]._replace(question=parts[0].question._replace(name=unit))
    if len(parts) == 1:
        return named
    names, weights = list(named.metrics), _weights(parts)
    means = np.average(_scores(parts, names), axis=0, weights=weights).tolist()
    return named._replace(metrics=dict(zip(names, means, strict=True)), weight=float(weights.sum()))


def _metrics_of(task: Task, answer: ScoredAnswer) -> tuple[list[str], list[str], Derive | None]:
    """Return the names of the metrics, the names of the derived metrics, and the function that derives."""
    names = list(answer.metrics)
    derived = list(task.derived_metrics(answer.metrics))

    def derive(means: np.ndarray) -> np.ndarray:
        rows = [task.derived_metrics(dict(zip(names, map(float, row), strict=True))) for row in means]
        return np.array([[row[name] for name in derived] for row in rows], np.float64)

    return names, derived, derive if derived else None


def _without_inner(task: Task, names: Sequence[str], found: Sequence[Interval]) -> dict[str, Interval]:
    named = zip(names, found, strict=True)
    return {name: interval for name, interval in named if name not in task.inner_metrics}


def _scores(answers: Sequence[ScoredAnswer], names: Sequence[str]) -> np.ndarray:
    for answer in answers:
        if list(answer.metrics) != list(names):
            raise ValueError(
                f"question {answer.question.name}: has the metrics {', '.join(answer.metrics)}; "
                f"allowed: those of the others, {', '.join(names)}"
            )
    return np.array([[answer.metrics[name] for name in names] for answer in answers], np.float64)


def _weights(answers: Sequence[ScoredAnswer]) -> np.ndarray:
    return np.array([answer.weight for answer in answers], np.float64)


def _group_scores(task: Task, group: str, answers: Sequence[ScoredAnswer], seed: int) -> list[GroupScores]:
    values = np.array([answer.question.groups[group] for answer in answers])
    parts = []
    for low, high in value_ranges(values):
        within = [answer for answer, value in zip(answers, values, strict=True) if low <= value <= high]
        if within and sum(answer.weight for answer in within) > 0:
            found = values[(values >= low) & (values <= high)]
            scores = mean_scores(task, within, seed)
            parts.append(GroupScores(int(found.min()), int(found.max()), len(within), scores))
    return parts


def _category_scores(task: Task, kind: str, answers: Sequence[ScoredAnswer], seed: int) -> Categories:
    known = [answer for answer in answers if kind in answer.question.categories]
    scores = []
    for name in sorted({name for answer in known for name in answer.question.categories[kind]}):
        within = [answer for answer in known if name in answer.question.categories[kind]]
        if sum(answer.weight for answer in within) > 0:
            scores.append(CategoryScores(name, len(within), mean_scores(task, within, seed)))
    return Categories(len(known), scores)


def value_ranges(values: np.ndarray) -> list[tuple[int, int]]:
    """Return the ranges of a group's values in increasing order, as first and last value.

    Up to 12 distinct values have a range each. For more values, the ranges end at powers of two if the
    largest value is more than 8 times the smallest, and have equal widths otherwise.
    """
    distinct = np.unique(values)
    if len(distinct) <= _MAX_PARTS:
        return [(int(value), int(value)) for value in distinct]
    low, high = int(distinct[0]), int(distinct[-1])
    if high > _WIDE * max(low, 1):
        edges = [0] if low <= 0 else []
        power = 1
        while power <= high:
            edges.append(power)
            power *= 2
        # A range begins after a power of two and ends with the next power of two.
        bounds = [low - 1, *[edge for edge in edges if low <= edge < high], high]
    else:
        bounds = np.linspace(low - 1, high, _WIDE + 1).astype(int).tolist()
    return [(begin + 1, end) for begin, end in pairwise(bounds) if end > begin]
