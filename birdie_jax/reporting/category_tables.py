"""The scores of an evaluation by categories, such as constructions: tables with a picture of each row."""

import math
from dataclasses import dataclass

from markupsafe import Markup

from birdie_jax.evaluation_record import Categories, EvaluationRecord, Interval

_WIDTH, _HEIGHT, _MARGIN = 240, 16, 4.0


def interval_mark(interval: Interval, low: float, high: float) -> Markup:
    """Return the SVG of an interval with a dot at its mean; empty where one of the three is not finite.

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
        mark: the picture of both.
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
        remark: of how many answers the categories are known, and of which model.
        kind: the kind of the categories.
        metric: the metric.
        axis: the values at both ends of the pictures' axis.
        rows: a row each, by name.
    """

    title: str
    remark: str
    kind: str
    metric: str
    axis: str
    rows: tuple[CategoryRow, ...]


def category_tables(record: EvaluationRecord) -> list[CategoryTable]:
    """Return a table for each kind of categories that an evaluation has."""
    return [_table(record, kind, categories) for kind, categories in record.categories.items()]


def _table(record: EvaluationRecord, kind: str, categories: Categories) -> CategoryTable:
    found = [(one, one.metrics[record.main_metric]) for one in categories.scores]
    ends = [end for _, each in found for end in (each.low, each.high) if math.isfinite(end)]
    # Shares and correlations have their whole range; a loss has none.
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
