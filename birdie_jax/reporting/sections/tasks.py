"""Section: what the run scored on tasks, while it trained and by `evaluate` (Figures 1 and 2)."""

from dataclasses import dataclass

import numpy as np

from birdie_jax.evaluation_record import EvaluationRecord, GroupScores, Interval
from birdie_jax.reporting.category_tables import category_tables
from birdie_jax.reporting.plots import Frame, Line, line_panel
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.scalar_panels import ScalarPlot, scalar_panel
from birdie_jax.reporting.section import HeadlineFigure, Panel, PanelGroup, Section, SectionKind
from birdie_jax.reporting.theme import ACCENT, css_colour

# As birdie_jax/tasks/task_hook.py logs them.
_PREFIX = "task/"
_COUNTS = ("/answers", "/not_asked")
_INTERVAL_WIDTH = 0.8


@dataclass(frozen=True)
class ScoreRow:
    """A row of the table of scores; numbers are text.

    Attributes:
        name: the evaluation; empty below its first row.
        step: the train step; empty below the first row.
        metric: the metric.
        mean: its mean.
        interval: its 95 % interval.
        answers: the number of answers; empty below the first row.
    """

    name: str
    step: str
    metric: str
    mean: str
    interval: str
    answers: str


@dataclass(frozen=True)
class RefusedQuestions:
    """What an evaluation could not ask.

    Attributes:
        name: the evaluation.
        count: the number of questions and records.
        first: the first of them, in words.
    """

    name: str
    count: int
    first: str


def make_section(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of tasks; None where the run was measured on none."""
    if not scalars and not run.evaluations:
        return None
    groups = [*_training_groups(run, scalars), *_evaluation_groups(run.evaluations)]
    refused = [
        RefusedQuestions(record.name, len(record.refused), record.refused[0])
        for record in run.evaluations
        if record.refused
    ]
    return Section(
        anchor="tasks",
        link="Tasks",
        title="Tasks",
        introduction="Curves over train steps are of tasks that were measured while training; those over "
        "counts and lengths, and the tables, of the newest evaluation of each name, with 95 % intervals.",
        groups=tuple(groups),
        figures=_figures(run),
        template="task_section.html",
        values={
            "rows": _rows(run.evaluations),
            "categories": [table for record in run.evaluations for table in category_tables(record)],
            "refused": refused,
        },
    )


def _training_groups(run: RunRecord, scalars: tuple[str, ...]) -> list[PanelGroup]:
    by_task: dict[str, list[str]] = {}
    for name in scalars:
        if not name.endswith(_COUNTS):
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
    frame = Frame(
        title, int(values.max()), limits=(0.0, 1.0) if is_share else (None, None), percent=is_share
    )
    return Panel(title, "mean, 95 % interval", line_panel(lines, frame))


def _rows(records: tuple[EvaluationRecord, ...]) -> list[ScoreRow]:
    rows = []
    for record in records:
        for number, (metric, interval) in enumerate(record.metrics.items()):
            is_first = number == 0
            rows.append(
                ScoreRow(
                    name=record.name if is_first else "",
                    step=f"{record.model.step:,}" if is_first else "",
                    metric=metric.replace("_", " "),
                    mean=f"{interval.mean:.4g}",
                    interval=f"{interval.low:.4g} to {interval.high:.4g}",
                    answers=f"{record.answers:,}" if is_first else "",
                )
            )
    return rows


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
