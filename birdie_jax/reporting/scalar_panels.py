"""Panels and headline figures of single scalars."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from birdie_jax.reporting import curves
from birdie_jax.reporting.page_text import NONE, fixed
from birdie_jax.reporting.plots import Frame, Line, line_panel
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.section import HeadlineFigure, Panel
from birdie_jax.reporting.svg import class_colour

# The unit of every loss of a language model.
LOSS = "nats a token"
LOG = ", log scale"

RECENT_LINES = 20
_SMOOTHED_FROM = 60  # the minimum number of lines for smoothing
_SAME_DECADES = 30.0  # the minimum ratio for a logarithmic axis, for positive quantities


@dataclass(frozen=True)
class ScalarPlot:
    """The style of a scalar's panel.

    Attributes:
        name: the name of the scalar in metrics.jsonl.
        title: the title of its panel.
        unit: the unit of the scalar.
        log_if_wide: whether the axis is logarithmic if the values span decades.
        percent: whether the scalar is a share, in percent.
        smoothed: whether a long curve is smoothed.
    """

    name: str
    title: str
    unit: str = "as logged"
    log_if_wide: bool = False
    percent: bool = False
    smoothed: bool = True


def scalar_panels(run: RunRecord, plots: tuple[ScalarPlot, ...]) -> tuple[Panel, ...]:
    """Return the panels of `plots`.

    A run with arms logs all scalars of language-model training, so a missing scalar gets an empty panel. In
    other runs it gets no panel.
    """
    return tuple(
        scalar_panel(run, plot)
        for plot in plots
        if run.arms or np.isfinite(run.metrics.scalar(plot.name)).any()
    )


def scalar_panel(run: RunRecord, plot: ScalarPlot) -> Panel:
    """Return the panel of one scalar, with a moving mean over a long noisy curve."""
    column, steps = run.metrics.scalar(plot.name), run.metrics.steps
    measured = np.isfinite(column)
    if not measured.any():
        return Panel(plot.title, plot.unit, "", f"Not logged ({plot.name}).")
    column, steps = column[measured], steps[measured]
    log = bool(plot.log_if_wide and column.min() > 0 and column.max() / column.min() > _SAME_DECADES)
    frame = Frame(plot.title, run.last_step, log=log, percent=plot.percent)
    unit = plot.unit + (LOG if log else "")
    if len(column) < _SMOOTHED_FROM or not plot.smoothed:
        return Panel(plot.title, unit, line_panel([Line(steps, column)], frame))
    window = curves.smoothing_window(len(column))
    raw = curves.bin_lines(steps, column[:, None], np.ones((len(column), 1)), 4 * curves.MAX_POINTS)
    lines = [
        Line(raw.steps, raw.values[:, 0], width=0.9, opacity=0.35),
        Line(*_thin(steps, curves.smooth(column, window)), width=1.8),
    ]
    note = f"Bold: moving mean over {window} log lines." if window > 1 else ""
    if note and raw.lines_per_bin > 1:
        note += f" Faint: means of {raw.lines_per_bin} lines."
    return Panel(plot.title, unit, line_panel(lines, frame), note)


def scalar_figure(run: RunRecord, scalar: str, name: str, form: Callable[[float], str]) -> HeadlineFigure:
    """Return the last value of a scalar, with the mean of its last lines."""
    which = "Final" if run.is_complete else "Latest"
    column = run.metrics.scalar(scalar)
    return HeadlineFigure(f"{which} {name}", form(curves.last_finite(column)), _recent_mean(column, form))


def _recent_mean(column: Float[np.ndarray, " lines"], form: Callable[[float], str]) -> str:
    known = column[np.isfinite(column)][-RECENT_LINES:]
    if len(known) < 2:
        return ""
    return f"mean of the last {len(known)} lines {form(float(known.mean()))}"


def _thin(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keep every n-th point of a smooth curve, and the last one."""
    kept = np.arange(len(steps) - 1, -1, -max(1, len(steps) // (2 * curves.MAX_POINTS)))[::-1]
    return steps[kept], values[kept]


def causal_arms(run: RunRecord) -> list[int]:
    """Return the indices of the arms with objective causal_lm."""
    return [index for index, arm in enumerate(run.arms) if arm.objective == "causal_lm"]


def causal_validation(run: RunRecord) -> Float[np.ndarray, " lines"]:
    """Return the mean validation loss of the causal arms on each line; NaN if there is none."""
    return curves.mean_over_arms(run.metrics.arm_values["validation_loss"][:, causal_arms(run)])


def unigram_entropy(run: RunRecord) -> float | None:
    """Return the entropy of single tokens in the causal validation text, or None if it is unknown."""
    value = run.summary.get("unigram_entropy")
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < 1e300 else None


def causal_panel(run: RunRecord) -> Panel:
    """Return the validation loss of the causal arms, with the entropy of single tokens for comparison."""
    title = "Validation loss, causal LM"
    if not causal_arms(run):
        return Panel(title, LOSS, "", "No arm of this run is causal language modelling.")
    values = causal_validation(run)
    measured = np.isfinite(values)
    entropy = unigram_entropy(run)
    group = list(run.groups).index(run.arms[causal_arms(run)[0]].group)
    line = Line(run.metrics.steps[measured], values[measured], class_colour(group), 2.0, end_dot=True)
    frame = Frame(title, run.last_step, reference=entropy, reference_label="unigram entropy")
    svg = line_panel([line], frame)
    if not svg:
        return Panel(title, LOSS, "", "Not measured yet.")
    note = (
        ""
        if entropy is None
        else f"Dashed: {entropy:.3f} nats, the loss of knowing token frequencies only."
    )
    return Panel(title, LOSS, svg, note)


def causal_figures(run: RunRecord) -> tuple[HeadlineFigure, ...]:
    """Return the last and the best validation loss of the causal arms."""
    values = causal_validation(run)
    measured = np.flatnonzero(np.isfinite(values))
    name = "Causal validation loss"
    if not causal_arms(run):
        return (HeadlineFigure(name, NONE, "no causal arm in the mixture"),)
    if not len(measured):
        return (HeadlineFigure(name, NONE, "not measured yet"),)
    last, best = float(values[measured[-1]]), measured[np.argmin(values[measured])]
    entropy = unigram_entropy(run)
    remark = f"perplexity {np.exp(last):,.1f}" if last < 20 else ""
    if entropy is not None:
        side = "below" if last < entropy else "above"
        remark += f"; {abs(entropy - last):.2f} {side} unigram entropy"
    best_loss, best_step = fixed(float(values[best])), f"at step {run.metrics.steps[best]:,}"
    return (
        HeadlineFigure(name, fixed(last), remark),
        HeadlineFigure("Best causal validation loss", best_loss, best_step),
    )
