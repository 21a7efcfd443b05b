"""Section: the table of arms."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from markupsafe import Markup

from birdie_jax.reporting import curves
from birdie_jax.reporting.json_records import ArmRecord
from birdie_jax.reporting.page_text import NONE, fixed, percent
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.section import Section, SectionKind
from birdie_jax.reporting.svg import class_colour, css_colour

_WIDTH, _HEIGHT, _MARGIN = 84, 18, 2.0


def sparkline(
    steps: Int[np.ndarray, " points"],
    values: Float[np.ndarray, " points"],
    last_step: int,
    colour: str,
    stairs: bool = False,
) -> Markup:
    """Return the SVG of `values`, scaled to their range; empty without finite values.

    Args:
        steps: the x values, from 0 to `last_step`.
        values: the y values; for a probability (`stairs`) the range begins at 0.
        last_step: the right end of x.
        colour: the CSS colour.
        stairs: whether a value holds until the next point.
    """
    finite = np.isfinite(values)
    steps, values = steps[finite], values[finite]
    if not len(values):
        return Markup("")
    low = 0.0 if stairs else float(values.min())
    span = float(values.max()) - low
    height = (values - low) / span if span > 0 else np.full(len(values), 0.5)
    x = _MARGIN + steps / max(1, last_step) * (_WIDTH - 2 * _MARGIN)
    y = _HEIGHT - _MARGIN - height * (_HEIGHT - 2 * _MARGIN)
    path = [f"M{x[0]:.1f} {y[0]:.1f}"]
    for i in range(1, len(x)):
        path.append(f"H{x[i]:.1f}V{y[i]:.1f}" if stairs else f"L{x[i]:.1f} {y[i]:.1f}")
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" aria-hidden="true"><path d="{}" style="stroke:{}"/>'
        '<circle cx="{:.1f}" cy="{:.1f}" r="1.8" style="fill:{}"/></svg>'
    ).format(_WIDTH, _HEIGHT, "".join(path), colour, x[-1], y[-1], colour)


@dataclass(frozen=True)
class ArmRow:
    """A row of the table of arms; numbers are text, and `NONE` if missing.

    Attributes:
        arm: the arm.
        parameters: the objective's parameters.
        colour: the CSS colour of its class.
        weight: the initial share of the mixture.
        probability: the final share of the mixture.
        change: the final share over the initial one.
        probability_curve: the sparkline of its share.
        loss: the last train loss.
        accuracy: the last train accuracy.
        validation_loss: the last validation loss.
        validation_accuracy: the last validation accuracy.
        validation_curve: the sparkline of its validation loss.
        tokens: the share of all target tokens.
    """

    arm: ArmRecord
    parameters: str
    colour: str
    weight: str
    probability: str
    change: str
    probability_curve: Markup
    loss: str
    accuracy: str
    validation_loss: str
    validation_accuracy: str
    validation_curve: Markup
    tokens: str


@dataclass(frozen=True)
class ArmClass:
    """A class in the table of arms, with the sums of its arms' shares.

    Attributes:
        name: the name of the class.
        colour: the CSS colour of the class.
        weight: the initial share of the mixture.
        probability: the final share of the mixture.
        tokens: the share of all target tokens.
        rows: the rows of its arms.
    """

    name: str
    colour: str
    weight: str
    probability: str
    tokens: str
    rows: tuple[ArmRow, ...]


def make_section(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of the table of arms, or None if the run has no arms."""
    if not run.arms:
        return None
    return Section(
        anchor="arms",
        link="Table of arms",
        title="Table of arms",
        template="arm_table.html",
        values={"classes": _arm_classes(run)},
    )


def _arm_classes(run: RunRecord) -> list[ArmClass]:
    """Return the table of arms, by class."""
    values = run.metrics.arm_values
    weights = np.array([arm.weight for arm in run.arms])
    weights = weights / weights.sum()
    tokens = np.nansum(values["tokens"], axis=0)
    token_share = tokens / tokens.sum() if tokens.sum() > 0 else np.full(len(tokens), np.nan)
    final = {name: [curves.last_finite(column) for column in matrix.T] for name, matrix in values.items()}
    rows = curves.decision_rows(values["validation_loss"])
    mixtures = curves.changed_rows(values["probability"])
    last_step = run.last_step
    steps = run.metrics.steps
    classes = []
    for index, (group, arms) in enumerate(run.groups.items()):
        colour = css_colour(class_colour(index))
        table = []
        for arm in arms:
            probability = final["probability"][arm]
            ratio = probability / weights[arm] if weights[arm] > 0 else float("nan")
            table.append(
                ArmRow(
                    arm=run.arms[arm],
                    parameters=", ".join(
                        f"{key}={_plain(value)}" for key, value in run.arms[arm].parameters.items()
                    ),
                    colour=colour,
                    weight=percent(weights[arm], 2),
                    probability=percent(probability, 2),
                    change=f"×{ratio:.2f}" if np.isfinite(ratio) else NONE,
                    probability_curve=sparkline(
                        steps[mixtures],
                        values["probability"][mixtures, arm],
                        last_step,
                        colour,
                        stairs=True,
                    ),
                    loss=fixed(final["loss"][arm]),
                    accuracy=percent(final["accuracy"][arm]),
                    validation_loss=fixed(final["validation_loss"][arm]),
                    validation_accuracy=percent(final["validation_accuracy"][arm]),
                    validation_curve=sparkline(
                        steps[rows], values["validation_loss"][rows, arm], last_step, colour
                    ),
                    tokens=percent(token_share[arm], 2),
                )
            )
        total = np.array([final["probability"][arm] for arm in arms])
        classes.append(
            ArmClass(
                name=group,
                colour=colour,
                weight=percent(float(weights[arms].sum()), 2),
                probability=percent(float(total.sum()), 2),
                tokens=percent(float(token_share[arms].sum()), 2),
                rows=tuple(table),
            )
        )
    return classes


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


ARM_TABLE = SectionKind(make_section)
