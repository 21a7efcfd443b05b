"""Evaluations as a table for the terminal."""

import io
import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from birdie_jax.evaluation_record import EvaluationRecord, Interval

_WIDTH = 110
_MAX_REFUSED = 3


def rendered_columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text as a table, the first two columns flush left."""
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(names):
        table.add_column(name, justify="left" if number < 2 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return _rendered(table)


def evaluation_table(records: Sequence[EvaluationRecord]) -> str:
    """Return a line for each metric of each evaluation, and below it one for each refused question."""
    table = Table(box=None, pad_edge=False)
    for name in ("task", "metric", "mean", "95 % interval", "answers"):
        table.add_column(name, justify="left" if name in ("task", "metric") else "right", no_wrap=True)
    for record in records:
        for number, (metric, interval) in enumerate(record.metrics.items()):
            name = record.name if number == 0 else ""
            answers = f"{record.answers:,}" if number == 0 else ""
            table.add_row(name, metric, *_cells(interval), answers)
        if not record.metrics:
            table.add_row(record.name, "none", "", "", f"{record.answers:,}")
    return "\n".join([_rendered(table), *refused_lines(records)])


def breakdown_tables(record: EvaluationRecord) -> str:
    """Return the main metric of an evaluation by its groups and categories; empty where it has none."""
    return "\n\n".join(filter(None, (group_tables(record), category_tables(record))))


def group_tables(record: EvaluationRecord) -> str:
    """Return the main metric of an evaluation by each of its groups; empty where it has none."""
    parts = []
    for group, scores in record.groups.items():
        if len(scores) < 2:
            continue
        table = Table(box=None, pad_edge=False, title_justify="left")
        table.add_column(group.replace("_", " "), justify="right", no_wrap=True)
        for name in (record.main_metric, "95 % interval", "answers"):
            table.add_column(name, justify="right", no_wrap=True)
        for part in scores:
            values = f"{part.low:,}" if part.low == part.high else f"{part.low:,}-{part.high:,}"
            table.add_row(values, *_cells(part.metrics[record.main_metric]), f"{part.count:,}")
        parts.append(f"{record.name} by {group.replace('_', ' ')}\n{_rendered(table)}")
    return "\n\n".join(parts)


def category_tables(record: EvaluationRecord) -> str:
    """Return the main metric of an evaluation by its categories, a row each; empty where it has none."""
    parts = []
    for kind, categories in record.categories.items():
        table = Table(box=None, pad_edge=False)
        table.add_column(kind, justify="left", no_wrap=True)
        for name in (record.main_metric, "95 % interval", "answers"):
            table.add_column(name, justify="right", no_wrap=True)
        for one in categories.scores:
            table.add_row(one.name, *_cells(one.metrics[record.main_metric]), f"{one.count:,}")
        title = f"{record.name} by {kind}, known of {categories.known:,} of {record.answers:,} answers"
        parts.append(f"{title}\n{_rendered(table)}")
    return "\n\n".join(parts)


def comparison_table(
    origins: Sequence[str],
    records: Sequence[Sequence[EvaluationRecord]],
    differences: Sequence[Sequence[tuple[dict[str, Interval], int]]],
) -> str:
    """Return models side by side: each metric of each, and how much it differs from the first's.

    Models have letters in the table, and their names below it.

    Args:
        origins: the models.
        records: for each model its evaluations, in the same order.
        differences: for each model but the first, for each evaluation, the paired differences by metric and
            the number of questions that both answered.
    """
    table = Table(box=None, pad_edge=False)
    for name in (
        "task",
        "metric",
        "model",
        "mean",
        "95 % interval",
        "difference",
        "95 % interval",
        "pairs",
    ):
        table.add_column(name, justify="left" if name in ("task", "metric", "model") else "right")
    letters = [_letter(model) for model in range(len(origins))]
    for number, first in enumerate(records[0]):
        for place, metric in enumerate(first.metrics):
            for model, letter in enumerate(letters):
                record = records[model][number]
                interval = record.metrics.get(metric)
                cells = _cells(interval) if interval else ("none", "")
                found, pairs = differences[model - 1][number] if model else ({}, 0)
                difference = _cells(found[metric], signed=True) if metric in found else ("", "")
                table.add_row(
                    first.name if place == 0 and model == 0 else "",
                    metric if model == 0 else "",
                    letter,
                    *cells,
                    *difference,
                    f"{pairs:,}" if model and metric in found else "",
                )
    names = [f"{letter}: {origin}" for letter, origin in zip(letters, origins, strict=True)]
    return "\n".join([_rendered(table), *names])


def refused_lines(records: Sequence[EvaluationRecord]) -> list[str]:
    """Return what was not asked, with how much more there is of it."""
    lines = []
    for record in records:
        if record.refused:
            lines.append(f"{record.name}: {len(record.refused):,} not asked:")
            lines += [f"  {line}" for line in record.refused[:_MAX_REFUSED]]
            if len(record.refused) > _MAX_REFUSED:
                lines.append(f"  and {len(record.refused) - _MAX_REFUSED:,} more, in the evaluation's file")
    return lines


def _letter(number: int) -> str:
    """Return A to Z, then A1 to Z1 and so on."""
    turn, place = divmod(number, 26)
    return chr(ord("A") + place) + (str(turn) if turn else "")


def _cells(interval: Interval, *, signed: bool = False) -> tuple[str, str]:
    mean, low, high = (_number(value, signed) for value in (interval.mean, interval.low, interval.high))
    return mean, f"{low} .. {high}"


def _number(value: float, signed: bool) -> str:
    if not math.isfinite(value):
        return str(value)
    sign = "+" if signed else ""
    return f"{value:{sign}.4f}" if abs(value) < 100 else f"{value:{sign},.1f}"


def _rendered(table: Table) -> str:
    text = io.StringIO()
    Console(file=text, width=_WIDTH, force_terminal=False, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip("\n").split("\n"))
