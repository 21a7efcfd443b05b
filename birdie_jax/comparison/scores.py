"""The scores of the sides: their spread over seeds, and their differences from the first side."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from birdie_jax.comparison.seed_interval import difference_interval, seed_interval
from birdie_jax.comparison.sides import Side
from birdie_jax.errors import BirdieError, ConfigError, RecordError
from birdie_jax.evaluation_record import EvaluationRecord, Interval
from birdie_jax.reporting import curves
from birdie_jax.reporting.page_text import NONE, count, duration
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.scalar_panels import RECENT_LINES
from birdie_jax.reporting.sections.scalars import wall_seconds
from birdie_jax.reporting.sections.tasks import is_task_score
from birdie_jax.storage.json_text import parse_json
from birdie_jax.storage.workdir import Workdir
from birdie_jax.tasks.question import Question, ScoredAnswer
from birdie_jax.tasks.registry import make_task
from birdie_jax.tasks.summary import paired_differences


@dataclass(frozen=True)
class Cell:
    """A value of the table.

    Attributes:
        text: the value.
        remark: its interval, or its source.
    """

    text: str
    remark: str = ""


@dataclass(frozen=True)
class Row:
    """A quantity of all sides.

    Attributes:
        name: the name of the quantity.
        cells: the value of each side.
        differences: for each side except the first, its difference from the first.
    """

    name: str
    cells: tuple[Cell, ...]
    differences: tuple[Cell, ...] = ()


_Form = Callable[[float], str]


def _number(value: float) -> str:
    return f"{value:.4g}".replace("-", "−") if math.isfinite(value) else NONE


def end_rows(sides: Sequence[Side]) -> list[Row]:
    """Return rows for the last logged values: losses, accuracies, tasks, tokens, time."""
    values = [[_end_values(run) for run in side.runs] for side in sides]
    names = dict.fromkeys(name for of_side in values for run in of_side for name in run)
    forms: Mapping[str, _Form] = {"tokens seen": count, "wall time": duration}
    rows = []
    for name in names:
        found = [np.array([run.get(name, math.nan) for run in of_side]) for of_side in values]
        differs = name not in forms
        rows.append(
            Row(
                name,
                tuple(_mean(each, forms.get(name, _number)) for each in found),
                tuple(_seed_difference(sides, found, number) for number in range(1, len(sides)))
                if differs
                else (),
            )
        )
    return rows


def _end_values(run: RunRecord) -> dict[str, float]:
    metrics = run.metrics
    found: dict[str, float] = {}
    for scalar in ("loss", "accuracy"):
        column = metrics.scalar(scalar)
        known = column[np.isfinite(column)][-RECENT_LINES:]
        if len(known):
            found[f"train {scalar}, mean of the last {RECENT_LINES} lines"] = float(known.mean())
    losses = metrics.arm_values["validation_loss"] if run.arms else np.zeros((0, 0))
    for group, arms in run.groups.items():
        found[f"validation loss of {group.replace('_', ' ')}"] = curves.last_finite(
            curves.mean_over_arms(losses[:, arms])
        )
    for name in sorted(metrics.scalars):
        if is_task_score(name):
            found[name.replace("_", " ")] = curves.last_finite(metrics.scalar(name))
    found["tokens seen"] = curves.last_finite(metrics.scalar("tokens_seen"))
    found["wall time"] = wall_seconds(metrics)
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _mean(values: np.ndarray, form: _Form) -> Cell:
    known = values[np.isfinite(values)]
    if not len(known):
        return Cell(NONE)
    missing = f", {len(values) - len(known)} without" if len(known) < len(values) else ""
    if len(values) == 1:
        return Cell(form(float(known[0])))
    spread = f"sd {form(float(np.std(known, ddof=1)))}, " if len(known) > 1 else ""
    return Cell(form(float(known.mean())), f"{spread}{form(known.min())} to {form(known.max())}{missing}")


def _seed_difference(sides: Sequence[Side], values: Sequence[np.ndarray], number: int) -> Cell:
    first, second = values[0], values[number]
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return Cell(NONE)
    if min(len(first), len(second)) < 2:
        return Cell(_signed(float(second.mean() - first.mean())), "no interval: one run")
    seeds, others = sides[0].seeds, sides[number].seeds
    if len(set(seeds)) == len(seeds) and set(seeds) == set(others) and len(seeds) == len(others):
        order = [others.index(seed) for seed in seeds]
        return _difference(seed_interval(second[order] - first), f"{len(seeds)} pairs of seeds")
    return _difference(
        difference_interval(first, second), f"{len(first)} and {len(second)} runs, seeds not paired"
    )


def _difference(interval: Interval, remark: str) -> Cell:
    ends = f"{_signed(interval.low)} to {_signed(interval.high)}"
    return Cell(_signed(interval.mean), f"{ends}; {remark}")


def _signed(value: float) -> str:
    if not math.isfinite(value):
        return NONE
    return f"{value:+.3g}".replace("-", "−") if value else "0"


def evaluation_rows(sides: Sequence[Side]) -> list[Row]:
    """Return rows for the newest evaluations of each name that several sides have, if they have scores.

    Differences between single runs are paired by question, and between several runs by seed.

    Raises:
        RecordError: a file of answers is missing or damaged; the message names it.
    """
    return [row for name in _shared_evaluations(sides) for row in _rows_of_evaluation(sides, name)]


def _shared_evaluations(sides: Sequence[Side]) -> list[str]:
    of_sides = [{record.name for run in side.runs for record in run.evaluations} for side in sides]
    names = sorted(set().union(*of_sides))
    return [name for name in names if sum(name in each for each in of_sides) > 1 or len(sides) == 1]


def _rows_of_evaluation(sides: Sequence[Side], name: str) -> Iterator[Row]:
    records = [[_record(run, name) for run in side.runs] for side in sides]
    known = [record for of_side in records for record in of_side if record is not None]
    if not known:
        return
    other = next((why for one in known if (why := _other_measurement(one, known[0]))), "")
    paired = [{} if other else _paired(sides, records, number) for number in range(1, len(sides))]
    for metric in known[0].metrics:
        values = [
            np.array([_metric(record, metric) for record in of_side], np.float64) for of_side in records
        ]
        cells = [
            _interval_cell(of_side[0], metric) if len(of_side) == 1 else _mean(found, _number)
            for of_side, found in zip(records, values, strict=True)
        ]
        differences = []
        for number in range(1, len(sides)):
            if other:
                differences.append(Cell(NONE, other))
            elif len(values[0]) == len(values[number]) == 1:
                differences.append(paired[number - 1].get(metric, Cell(NONE)))
            else:
                differences.append(_seed_difference(sides, values, number))
        yield Row(f"{name}: {metric}".replace("_", " "), tuple(cells), tuple(differences))


def _other_measurement(record: EvaluationRecord, first: EvaluationRecord) -> str:
    """Return why the scores of two evaluations have no difference; empty if they have one."""
    if (record.task, record.settings) != (first.task, first.settings):
        return "other settings of the task"
    # Another version of a task may have other metrics.
    return "other metrics of the task" if record.metrics.keys() != first.metrics.keys() else ""


def _record(run: RunRecord, name: str) -> EvaluationRecord | None:
    """Return a run's evaluation; None if it has none, or one without scores, such as of predictions."""
    return next((record for record in run.evaluations if record.name == name and record.metrics), None)


def _metric(record: EvaluationRecord | None, metric: str) -> float:
    interval = None if record is None else record.metrics.get(metric)
    return math.nan if interval is None else interval.mean


def _interval_cell(record: EvaluationRecord | None, metric: str) -> Cell:
    interval = None if record is None else record.metrics.get(metric)
    if record is None or interval is None:
        return Cell(NONE)
    ends = f"{_number(interval.low)} to {_number(interval.high)}"
    return Cell(_number(interval.mean), f"{ends}; {record.answers:,} answers, step {record.model.step:,}")


def _paired(
    sides: Sequence[Side], records: Sequence[Sequence[EvaluationRecord | None]], number: int
) -> dict[str, Cell]:
    """Return the differences of one run from another, by metric, paired by question."""
    first, second = records[0][0], records[number][0]
    if first is None or second is None or len(records[0]) + len(records[number]) > 2:
        return {}
    try:
        task = make_task(first.task, first.settings, f"evaluation {first.name}")
    except ConfigError as error:
        missing = Cell(NONE, f"{error}; use --import to register it")
        return dict.fromkeys(first.metrics, missing)
    ours, theirs = _answers(sides[0].runs[0], first), _answers(sides[number].runs[0], second)
    try:
        found, pairs = paired_differences(task, ours, theirs)
    except BirdieError as error:
        return dict.fromkeys(first.metrics, Cell(NONE, str(error)))
    if not pairs:
        return dict.fromkeys(first.metrics, Cell(NONE, "0 pairs of answers"))
    return {
        metric: _difference(interval, f"{pairs:,} pairs of answers") for metric, interval in found.items()
    }


def _answers(run: RunRecord, record: EvaluationRecord) -> list[ScoredAnswer]:
    path = Workdir(run.workdir).evaluation_answers(record.model.step, record.name)
    answers = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from error
    for number, line in enumerate(lines, start=1):
        try:
            value = parse_json(line)
            question = Question(
                value["name"],
                value["prompt"],
                tuple(value["references"]),
                tuple(value.get("choices", ())),
                value["groups"],
                categories={kind: tuple(names) for kind, names in value.get("categories", {}).items()},
            )
            answer = ScoredAnswer(
                question,
                value["answer"],
                {name: float(score) for name, score in value["metrics"].items()},
                float(value["weight"]),
                value.get("details", {}),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(
                f"{path}: line {number}: found no answer ({type(error).__name__}: {error}); allowed: the "
                "lines that evaluate writes"
            ) from error
        answers.append(answer)
    return answers
