"""The figures and tables of the page: headline, arms, configuration."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from markupsafe import Markup

from birdie_jax.reporting import curves
from birdie_jax.reporting.numbers import NONE, count, duration, fixed, percent
from birdie_jax.reporting.panels import causal_arms, causal_validation, unigram_entropy
from birdie_jax.reporting.run_record import Arm, RunRecord
from birdie_jax.reporting.sparkline import sparkline
from birdie_jax.reporting.theme import class_colour, css_colour

_RECENT_LINES = 20


@dataclass(frozen=True)
class Figure:
    """A headline figure: its name, its value, and a remark."""

    name: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class State:
    """How far the run is.

    Attributes:
        complete: whether the summary says that it ended as planned.
        text: in words.
        done: share of its steps, for a bar.
    """

    complete: bool
    text: str
    done: float


@dataclass(frozen=True)
class ArmRow:
    """A row of the table of arms; numbers as text, `NONE` where there is none."""

    arm: Arm
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
    """A class in the table of arms, with the sums of its shares."""

    name: str
    colour: str
    weight: str
    probability: str
    tokens: str
    rows: tuple[ArmRow, ...]


def run_state(run: RunRecord) -> State:
    """Return whether the run is complete; only its own summary can say so."""
    last, planned = int(run.metrics.steps[-1]), run.setting("train.num_steps")
    done = min(1.0, last / planned)
    if run.summary.get("completed") is True:
        return State(True, f"Complete: {last:,} steps", 1.0)
    return State(False, f"Not complete: step {last:,} of {planned:,} ({percent(done)})", done)


def headline(run: RunRecord) -> list[Figure]:
    """Return the figures by which the run is judged."""
    metrics = run.metrics
    which = "Final" if run_state(run).complete else "Latest"
    loss, accuracy = metrics.scalar("loss"), metrics.scalar("accuracy")
    figures = [
        Figure(f"{which} train loss", fixed(curves.last_finite(loss)), _recent(loss, fixed)),
        Figure(
            f"{which} train accuracy", percent(curves.last_finite(accuracy)), _recent(accuracy, percent)
        ),
        *_causal_figures(run),
        Figure("Steps", f"{int(metrics.steps[-1]):,}", f"of {run.setting('train.num_steps'):,} planned"),
        Figure("Tokens seen", count(curves.last_finite(metrics.scalar("tokens_seen")))),
    ]
    speed = metrics.scalar("tokens_per_second")
    known = speed[np.isfinite(speed)]
    median = float(np.median(known)) if len(known) else float("nan")
    figures.append(Figure("Tokens a second", count(median), "median of the log lines"))
    figures.append(Figure("Wall time", duration(wall_seconds(metrics.scalar("elapsed_seconds")))))
    shown = {"completed", "unigram_entropy"}
    for name in ("parameters", "vocab_size"):
        if name in run.summary:
            shown.add(name)
            figures.append(Figure(name.replace("_", " ").capitalize(), _summary_value(run.summary[name])))
    for name, value in run.summary.items():
        if name not in shown and isinstance(value, int | float | str):
            figures.append(
                Figure(name.replace("_", " ").capitalize(), _summary_value(value), "from summary.json")
            )
    return figures


def wall_seconds(elapsed: Float[np.ndarray, " lines"]) -> float:
    """Return the seconds that all attempts of the run took: where the clock falls back, a new one began."""
    elapsed = elapsed[np.isfinite(elapsed)]
    if not len(elapsed):
        return float("nan")
    steps = np.diff(elapsed)
    return float(elapsed[0] + np.where(steps < 0, elapsed[1:], steps).sum())


def arm_classes(run: RunRecord) -> list[ArmClass]:
    """Return the table of arms, by class."""
    values = run.metrics.arm_values
    weights = np.array([arm.weight for arm in run.arms])
    weights = weights / weights.sum()
    tokens = np.nansum(values["tokens"], axis=0)
    token_share = tokens / tokens.sum() if tokens.sum() > 0 else np.full(len(tokens), np.nan)
    final = {name: [curves.last_finite(column) for column in matrix.T] for name, matrix in values.items()}
    rows = curves.decision_rows(values["validation_loss"])
    mixtures = curves.changed_rows(values["probability"])
    last_step = int(run.metrics.steps[-1])
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


def config_sections(config: dict[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the configuration as sections of rows: dotted field and value."""
    top = [(name, json.dumps(value)) for name, value in config.items() if not isinstance(value, dict)]
    sections = [("run", top)] if top else []
    for name, section in config.items():
        if isinstance(section, dict):
            fields = [
                (key, json.dumps(value, indent=1, ensure_ascii=False)) for key, value in section.items()
            ]
            sections.append((name, fields))
    return sections


def _causal_figures(run: RunRecord) -> list[Figure]:
    values = causal_validation(run)
    measured = np.flatnonzero(np.isfinite(values))
    name = "Causal validation loss"
    if not causal_arms(run):
        return [Figure(name, NONE, "no causal arm in the mixture")]
    if not len(measured):
        return [Figure(name, NONE, "not measured yet")]
    last, best = values[measured[-1]], measured[np.argmin(values[measured])]
    entropy = unigram_entropy(run)
    remark = f"perplexity {np.exp(last):,.1f}" if last < 20 else ""
    if entropy is not None:
        side = "below" if last < entropy else "above"
        remark += f"; {abs(entropy - last):.2f} {side} unigram entropy"
    return [
        Figure(name, fixed(last), remark),
        Figure("Best causal validation loss", fixed(values[best]), f"at step {run.metrics.steps[best]:,}"),
    ]


def _recent(column: Float[np.ndarray, " lines"], form: Callable[[float], str]) -> str:
    known = column[np.isfinite(column)][-_RECENT_LINES:]
    if len(known) < 2:
        return ""
    return f"mean of the last {len(known)} lines {form(float(known.mean()))}"


def _summary_value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return count(value) if isinstance(value, int) else f"{value:.4g}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
