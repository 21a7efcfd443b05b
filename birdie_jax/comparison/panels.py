"""The curves of all sides in shared panels: thin lines for runs, thick lines for their mean."""

from collections.abc import Callable, Sequence

import numpy as np

from birdie_jax.comparison.sides import Side
from birdie_jax.reporting import curves
from birdie_jax.reporting.plots import Frame, Line, line_panel, spans_widely
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.scalar_panels import LOG, LOSS
from birdie_jax.reporting.section import LegendEntry, Panel
from birdie_jax.reporting.sections.tasks import is_task_score
from birdie_jax.reporting.svg import CSS_DASHES, class_colour, class_dash, css_colour

_Read = Callable[[RunRecord], np.ndarray]
_SCALARS = (
    ("loss", "Train loss", LOSS),
    ("accuracy", "Train accuracy", "share of target tokens, greedy"),
)
_MACHINE = (
    ("tokens_per_second", "Throughput", "tokens a second"),
    ("learning_rate", "Learning rate", "at each logged step"),
    ("grad_norm", "Gradient norm", "global, before clipping"),
)


def legend(sides: Sequence[Side]) -> tuple[LegendEntry, ...]:
    """Return an entry for each side."""
    return tuple(
        LegendEntry(
            side.name if len(side.runs) == 1 else f"{side.name} ({len(side.runs)} runs)",
            css_colour(class_colour(index)),
            CSS_DASHES[class_dash(index)],
        )
        for index, side in enumerate(sides)
    )


def panels(sides: Sequence[Side]) -> tuple[Panel, ...]:
    """Return a panel for each quantity that a run has logged."""
    found = [_panel(sides, title, unit, _scalar(name)) for name, title, unit in _SCALARS]
    groups = dict.fromkeys(group for side in sides for run in side.runs for group in run.groups)
    for group in groups:
        title = f"Validation loss, {group.replace('_', ' ')}"
        found.append(_panel(sides, title, f"{LOSS}, mean over arms", _group(group)))
    names = {name for side in sides for run in side.runs for name in run.metrics.scalars}
    tasks = sorted(filter(is_task_score, names))
    found += [_panel(sides, name.replace("_", " "), "mean", _scalar(name)) for name in tasks]
    found += [_panel(sides, title, unit, _scalar(name)) for name, title, unit in _MACHINE]
    return tuple(panel for panel in found if panel.svg)


def _scalar(name: str) -> _Read:
    return lambda run: run.metrics.scalar(name)


def _group(group: str) -> _Read:
    def read(run: RunRecord) -> np.ndarray:
        if group not in run.groups:
            return np.full(len(run.metrics.steps), np.nan)
        return curves.mean_over_arms(run.metrics.arm_values["validation_loss"][:, run.groups[group]])

    return read


def _panel(sides: Sequence[Side], title: str, unit: str, read: _Read) -> Panel:
    lines = [
        line for index, side in enumerate(sides) for line in _lines(side, index, read, len(sides) == 1)
    ]
    log = unit.startswith(LOSS) and spans_widely([line.values for line in lines] or [np.zeros(0)])
    last = max(run.last_step for side in sides for run in side.runs)
    return Panel(title, unit + (LOG if log else ""), line_panel(lines, Frame(title, last, log=log)))


def _lines(side: Side, index: int, read: _Read, alone: bool) -> list[Line]:
    found = []
    for run in side.runs:
        column = read(run)
        binned = curves.bin_lines(run.metrics.steps, column[:, None], np.ones((len(column), 1)))
        if len(binned.steps):
            found.append((run.workdir.name, binned.steps, binned.values[:, 0]))
    if not found:
        return []
    if len(found) == 1:
        _, steps, values = found[0]
        return [_main_line(steps, values, side.name, index, side.name)]
    lines = [
        Line(
            steps,
            values,
            class_colour(index),
            0.9,
            opacity=0.5,
            dash=class_dash(index),
            tooltip=f"{side.name}/{name}",
        )
        for name, steps, values in found
    ]
    # Average over the range that all runs cover, interpolated between points like the drawn lines.
    first, last = max(steps[0] for _, steps, _ in found), min(steps[-1] for _, steps, _ in found)
    grid = found[0][1]
    grid = grid[(grid >= first) & (grid <= last)]
    if len(grid):
        mean = np.mean([np.interp(grid, steps, values) for _, steps, values in found], axis=0)
        lines.append(_main_line(grid, mean, f"mean of {side.name}", index, "" if alone else side.name))
    return lines


def _main_line(steps: np.ndarray, values: np.ndarray, tooltip: str, index: int, label: str) -> Line:
    return Line(
        steps,
        values,
        class_colour(index),
        1.8,
        dash=class_dash(index),
        tooltip=tooltip,
        end_dot=True,
        label=label,
    )
