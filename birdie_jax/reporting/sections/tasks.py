"""Section: the run's scores on tasks, during training and from `evaluate` (Figures 1 and 2)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup

from birdie_jax.evaluation_record import Categories, EvaluationRecord, GroupScores, Interval
from birdie_jax.reporting.plots import Frame, Line, line_panel
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.scalar_panels import ScalarPlot, scalar_panel
from birdie_jax.reporting.section import HeadlineFigure, Panel, PanelGroup, Section, SectionKind
from birdie_jax.reporting.svg import ACCENT, css_colour

_WIDTH, _HEIGHT, _MARGIN = 240, 16, 4.0


def interval_mark(interval: Interval, low: float, high: float) -> Markup:
    """Return the SVG of an interval with a dot at its mean; empty if a value is not finite.

    Args:
        interval: the mean and its interval.
        low: the value at the left end of the axis.
        high: the value at the right end of the axis.
    """
    values = (interval.low, interval.mean, interval.high)
    if not all(map(math.isfinite, values)):
        return Markup("")
    span = high - low or 1.0
    left, middle, right = (_MARGIN + (value - low) / span * (_WIDTH - 2 * _MARGIN) for value in values)
    return Markup(
        '<svg class="interval" viewBox="0 0 {} {}" aria-hidden="true"><path d="M{:.1f} {}H{:.1f}"/>'
        '<circle cx="{:.1f}" cy="{}" r="3"/></svg>'
    ).format(_WIDTH, _HEIGHT, left, _HEIGHT // 2, right, middle, _HEIGHT // 2)


@dataclass(frozen=True)
class CategoryRow:
    """A category; numbers are text.

    Attributes:
        name: the name of the category.
        mean: the mean of the main metric.
        interval: its 95 % interval.
        mark: the picture of mean and interval.
        answers: the number of answers.
    """

    name: str
    mean: str
    interval: str
    mark: Markup
    answers: str


@dataclass(frozen=True)
class CategoryTable:
    """The categories of one kind, side by side.

    Attributes:
        title: the evaluation, the metric and the kind.
        remark: the model, and the number of answers with known categories.
        kind: the kind of the categories.
        metric: the metric.
        axis: the values at the ends of the pictures' axis.
        rows: a row per category, by name.
    """

    title: str
    remark: str
    kind: str
    metric: str
    axis: str
    rows: tuple[CategoryRow, ...]


def category_tables(record: EvaluationRecord) -> list[CategoryTable]:
    """Return a table for each kind of categories in an evaluation."""
    return [_table(record, kind, categories) for kind, categories in record.categories.items()]


def _table(record: EvaluationRecord, kind: str, categories: Categories) -> CategoryTable:
    found = [(one, one.metrics[record.main_metric]) for one in categories.scores]
    ends = [end for _, each in found for end in (each.low, each.high) if math.isfinite(end)]
    # The axis covers 0 to 1 and all intervals.
    low = min([0.0, *ends])
    high = max([1.0, *ends])
    metric = record.main_metric.replace("_", " ")
    return CategoryTable(
        title=f"{record.name.replace('_', ' ')}: {metric} by {kind}",
        remark=f"known of {categories.known:,} of {record.answers:,} answers, at step "
        f"{record.model.step:,}",
        kind=kind,
        metric=metric,
        axis=f"{low:.3g} to {high:.3g}",
        rows=tuple(
            CategoryRow(
                name=one.name,
                mean=f"{interval.mean:.4g}",
                interval=f"{interval.low:.4g} to {interval.high:.4g}",
                mark=interval_mark(interval, low, high),
                answers=f"{one.count:,}",
            )
            for one, interval in found
        ),
    )


# The prefix in birdie_jax/tasks/task_hook.py.
_PREFIX = "task/"
_COUNTS = ("/answers", "/not_asked")
_INTERVAL_WIDTH = 0.8


def is_task_score(scalar: str) -> bool:
    """Return whether a scalar of metrics.jsonl is the score of a task during training."""
    return scalar.startswith(_PREFIX) and not scalar.endswith(_COUNTS)


@dataclass(frozen=True)
class ScoreRow:
    """A row of a table of scores, or of differences; numbers are text.

    Attributes:
        name: the evaluation; empty below its first row.
        model: the train step, or the other model; empty below its first row.
        metric: the metric.
        mean: the mean of the metric.
        interval: its 95 % interval.
        answers: the number of answers, or of pairs of answers; empty below the first row.
    """

    name: str
    model: str
    metric: str
    mean: str
    interval: str
    answers: str


@dataclass(frozen=True)
class RefusedQuestions:
    """The refused questions of an evaluation.

    Attributes:
        name: the evaluation.
        count: the number of questions and records.
        first: a text about the first of them.
    """

    name: str
    count: int
    first: str


def make_section(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of tasks, or None if the run has no scores."""
    if not scalars and not run.evaluations:
        return None
    groups = _merged([*_training_groups(run, scalars), *_evaluation_groups(run.evaluations)])
    refused = [
        RefusedQuestions(record.name, len(record.refused), record.refused[0])
        for record in run.evaluations
        if record.refused
    ]
    return Section(
        anchor="tasks",
        link="Tasks",
        title="Tasks",
        introduction="Curves over train steps show tasks that the run measured while training. Tables, and "
        "curves over counts and lengths, show the newest evaluation of each name, with 95 % intervals.",
        groups=tuple(groups),
        figures=_figures(run),
        template="task_section.html",
        values={
            "rows": _rows(run.evaluations),
            "categories": [table for record in run.evaluations for table in category_tables(record)],
            "refused": refused,
            "differences": _difference_rows(run.evaluations),
        },
    )


def _merged(groups: list[PanelGroup]) -> list[PanelGroup]:
    """Merge the groups with the same heading."""
    found: dict[str, PanelGroup] = {}
    for group in groups:
        before = found.get(group.heading)
        found[group.heading] = (
            group
            if before is None
            else replace(
                before, panels=before.panels + group.panels, remark=f"{before.remark}; {group.remark}"
            )
        )
    return list(found.values())


def _training_groups(run: RunRecord, scalars: tuple[str, ...]) -> list[PanelGroup]:
    by_task: dict[str, list[str]] = {}
    for name in scalars:
        if is_task_score(name):
            by_task.setdefault(name.removeprefix(_PREFIX).partition("/")[0], []).append(name)
    return [
        PanelGroup(
            tuple(
                scalar_panel(
                    run, ScalarPlot(name, name.rpartition("/")[2].replace("_", " "), "mean", smoothed=False)
                )
                for name in names
            ),
            heading=task.replace("_", " "),
            remark="while training",
            colour=css_colour(ACCENT),
        )
        for task, names in sorted(by_task.items())
    ]


def _evaluation_groups(records: tuple[EvaluationRecord, ...]) -> list[PanelGroup]:
    groups = []
    for record in records:
        panels = [
            _group_panel(record.main_metric, group, scores)
            for group, scores in record.groups.items()
            if len(scores) > 1
        ]
        if panels:
            groups.append(
                PanelGroup(
                    tuple(panels),
                    heading=record.name.replace("_", " "),
                    remark=f"evaluated at step {record.model.step:,}",
                    colour=css_colour(ACCENT),
                )
            )
    return groups


def _group_panel(metric: str, group: str, scores: list[GroupScores]) -> Panel:
    values = np.array([(part.low + part.high) / 2 for part in scores])
    intervals = [part.metrics[metric] for part in scores]

    def column(name: str) -> np.ndarray:
        return np.array([getattr(interval, name) for interval in intervals], np.float64)

    tooltip = "; ".join(
        f"{part.low:,}{'' if part.low == part.high else f' to {part.high:,}'}: "
        f"{interval.mean:.3f} of {part.count:,}"
        for part, interval in zip(scores, intervals, strict=True)
    )
    lines = [
        Line(values, column(end), width=_INTERVAL_WIDTH, opacity=0.6, dash=1) for end in ("low", "high")
    ]
    lines.append(Line(values, column("mean"), tooltip=tooltip))
    title = f"{metric.replace('_', ' ')} by {group.replace('_', ' ')}"
    is_share = all(interval.low >= 0 and interval.high <= 1 for interval in intervals)
    limits = (0.0, 1.0) if is_share else (None, None)
    # Lengths from 2,000 to 2,048 would be a short stroke at the end of an axis from 0.
    first = int(values.min()) if values.min() > values.max() / 2 else 0
    frame = Frame(title, int(values.max()), limits=limits, percent=is_share, first_step=first)
    return Panel(title, "mean, 95 % interval", line_panel(lines, frame))


def _rows(records: tuple[EvaluationRecord, ...]) -> list[ScoreRow]:
    return [
        row
        for record in records
        for row in _metric_rows(record.name, f"{record.model.step:,}", record.metrics, record.answers)
    ]


def _difference_rows(records: tuple[EvaluationRecord, ...]) -> list[ScoreRow]:
    return [
        row
        for record in records
        for place, other in enumerate(record.differences)
        for row in _metric_rows(
            "" if place else record.name,
            f"{other.model.origin} step {other.model.step:,}",
            other.metrics,
            other.pairs,
            "+",
        )
    ]


def _metric_rows(
    name: str, model: str, metrics: Mapping[str, Interval], answers: int, sign: str = ""
) -> list[ScoreRow]:
    form = f"{sign}.4g"
    return [
        ScoreRow(
            name="" if number else name,
            model="" if number else model,
            metric=metric.replace("_", " "),
            mean=format(interval.mean, form),
            interval=f"{format(interval.low, form)} to {format(interval.high, form)}",
            answers="" if number else f"{answers:,}",
        )
        for number, (metric, interval) in enumerate(metrics.items())
    ]


def _figures(run: RunRecord) -> tuple[HeadlineFigure, ...]:
    figures = []
    for record in run.evaluations:
        interval: Interval | None = record.metrics.get(record.main_metric)
        if interval is not None:
            figures.append(
                HeadlineFigure(
                    f"{record.name.replace('_', ' ')}: {record.main_metric.replace('_', ' ')}",
                    f"{interval.mean:.3g}",
                    f"{interval.low:.3g} to {interval.high:.3g}, {record.answers:,} answers",
                )
            )
    return tuple(figures)


TASKS = SectionKind(make_section, scalars=(f"{_PREFIX}*",))
