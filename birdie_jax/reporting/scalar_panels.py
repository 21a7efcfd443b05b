"""Panels of one scalar of the run each."""

from dataclasses import dataclass

import numpy as np

from birdie_jax.reporting import curves
from birdie_jax.reporting.plots import Frame, Line, line_panel
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.section import Panel

# Nats a token: every loss of a language model.
LOSS = "nats a token"
LOG = ", log scale"

_SMOOTHED_FROM = 60  # lines; a shorter run is shown as it is
_SAME_DECADES = 30.0  # a positive quantity that spans more is drawn on a logarithmic axis


@dataclass(frozen=True)
class ScalarPlot:
    """How a scalar is drawn.

    Attributes:
        name: the name of the scalar in metrics.jsonl.
        title: the title of its panel.
        unit: the unit of the scalar.
        log_if_wide: whether the axis is logarithmic where the values span decades.
        percent: whether the scalar is a share, written in percent.
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

    A run with arms logs all the scalars of language-model training, so that a missing one is worth an empty
    panel; in another run it has no panel.
    """
    return tuple(
        scalar_panel(run, plot)
        for plot in plots
        if run.arms or np.isfinite(run.metrics.scalar(plot.name)).any()
    )


def scalar_panel(run: RunRecord, plot: ScalarPlot) -> Panel:
    """Return the panel of one scalar; a long noisy curve has its moving mean drawn over it."""
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


def _thin(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keep every n-th point of a smooth curve, and its last."""
    kept = np.arange(len(steps) - 1, -1, -max(1, len(steps) // (2 * curves.MAX_POINTS)))[::-1]
    return steps[kept], values[kept]
