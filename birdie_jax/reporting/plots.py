"""Panels of lines and areas over train steps: small figures of a fixed layout."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.section import LegendEntry
from birdie_jax.reporting.svg import (
    ACCENT,
    AXIS,
    CSS_DASHES,
    DASHES,
    GRID,
    QUIET,
    REFERENCE,
    TOOLTIP,
    class_colour,
    class_dash,
    css_colour,
    inline_svg,
)


def class_legend(run: RunRecord) -> tuple[LegendEntry, ...]:
    """Return an entry for each class of the run."""
    return tuple(
        LegendEntry(group, css_colour(class_colour(index)), CSS_DASHES[class_dash(index)])
        for index, group in enumerate(run.groups)
    )


Points = Float[np.ndarray, " points"] | Int[np.ndarray, " points"]

_MAX_LINEAR_RATIO = 8.0  # the ratio of the largest to the smallest loss above which the axis is logarithmic

_POINTS_PER_INCH = 72
_LABEL_CHARACTER, _LABEL_HEIGHT, _MAX_LABEL = 4.9, 10.5, 108.0  # points
_MARKED_POINTS = 24  # shorter curves show their points


@dataclass(frozen=True)
class Line:
    """One curve.

    Attributes:
        steps: the x values.
        values: the y values; a value that is not finite leaves a gap.
        colour: a colour code of `svg`.
        width: the width in points.
        opacity: the opacity; 1: opaque.
        dash: the index in `svg.DASHES`.
        tooltip: the tooltip.
        stairs: whether a value holds until the next point, like a mixture.
        end_dot: whether the last point is marked.
        label: the text at the end of the line, in its colour.
    """

    steps: Points
    values: Float[np.ndarray, " points"]
    colour: str = ACCENT
    width: float = 1.6
    opacity: float = 1.0
    dash: int = 0
    tooltip: str = ""
    stairs: bool = False
    end_dot: bool = False
    label: str = ""


@dataclass(frozen=True)
class Frame:
    """The axes around the curves of a panel.

    Attributes:
        label: the description for screen readers.
        last_step: the right end of the x axis, equal in all panels of a page.
        first_step: the left end of the x axis.
        limits: the limits of y; None: from the data.
        log: whether y is logarithmic.
        reference: the y of a dashed line across the panel.
        reference_label: the name written on that line.
        percent: whether y is a share, in percent; the axis covers 0 to at least 1 %.
        zero: whether the y axis includes and marks 0.
        size: the width and height in points.
    """

    label: str
    last_step: int
    limits: tuple[float | None, float | None] = (None, None)
    log: bool = False
    reference: float | None = None
    reference_label: str = ""
    percent: bool = False
    zero: bool = False
    size: tuple[float, float] = (380.0, 200.0)
    first_step: int = 0


def spans_widely(curves: Sequence[np.ndarray]) -> bool:
    """Return whether positive curves need a logarithmic axis."""
    known = np.concatenate([curve[np.isfinite(curve)] for curve in curves])
    return bool(len(known) and known.min() > 0 and known.max() / known.min() > _MAX_LINEAR_RATIO)


def line_panel(lines: Sequence[Line], frame: Frame) -> str:
    """Return the SVG of `lines`; empty if no line has a finite value."""
    lines = [line for line in lines if np.isfinite(line.values).any()]
    if not lines:
        return ""
    figure, axes = _figure(frame, _label_width(lines))
    tooltips: list[str] = []
    for order, line in enumerate(lines):
        finite = np.isfinite(line.values)
        shown = np.where(finite, line.values, np.nan)
        (artist,) = axes.plot(
            line.steps,
            shown,
            color=line.colour,
            linewidth=line.width,
            alpha=line.opacity,
            linestyle=DASHES[line.dash],
            drawstyle="steps-post" if line.stairs else "default",
            zorder=3 + order / len(lines),
        )
        few = finite.sum() <= _MARKED_POINTS and line.width > 1 and not line.stairs
        # Mark single points, which have no line, and the points of short curves.
        marked = np.flatnonzero(finite if few else finite & ~_has_neighbour(finite))
        if len(marked):
            size = 4.5 if len(marked) == finite.sum() == 1 else 2.2 + line.width
            artist.set(
                marker="o", markersize=size, markeredgewidth=0, markevery=marked.tolist(), clip_on=False
            )
        if line.tooltip:
            artist.set_gid(f"{TOOLTIP}{len(tooltips)}")
            tooltips.append(line.tooltip)
        if line.end_dot:
            last = np.flatnonzero(finite)[-1]
            (dot,) = axes.plot(
                line.steps[last], shown[last], "o", color=line.colour, markersize=4.5, zorder=5
            )
            dot.set(markeredgewidth=0, clip_on=False)
    if frame.log:
        axes.set_yscale("log")
    _set_y_range(axes, lines, frame)
    _finish_axes(axes, frame)
    _label_ends(axes, lines, frame)
    return inline_svg(figure, frame.label, tooltips)


def area_panel(
    steps: Points, shares: Float[np.ndarray, "points classes"], lines: Sequence[Line], frame: Frame
) -> str:
    """Return the SVG of stacked `shares`, coloured and dashed like `lines`; empty without points.

    A single point is drawn as a bar over the whole width.
    """
    known = np.isfinite(shares).all(axis=1) & (np.nansum(shares, axis=1) > 0)
    steps, shares = steps[known].astype(float), shares[known]
    if not len(steps):
        return ""
    if len(steps) == 1 or (steps[-1] == steps[0]):
        steps, shares = np.array([0.0, max(1, frame.last_step)]), shares[[-1, -1]]
    figure, axes = _figure(frame)
    lower = np.zeros(len(steps))
    tooltips = []
    for index, line in enumerate(lines):
        upper = lower + shares[:, index] / shares.sum(axis=1)
        step = "post" if line.stairs else None
        area = axes.fill_between(
            steps,
            lower,
            upper,
            color=line.colour,
            alpha=0.85 - 0.25 * line.dash,
            linewidth=0,
            step=step,
            zorder=2,
        )
        area.set_gid(f"{TOOLTIP}{index}")
        tooltips.append(line.tooltip)
        lower = upper
    axes.set_ylim(0, 1)
    _finish_axes(axes, frame)
    axes.grid(False)
    return inline_svg(figure, frame.label, tooltips)


def _figure(frame: Frame, label_width: float = 0.0) -> tuple[Figure, Axes]:
    width, height = frame.size
    figure = Figure((width / _POINTS_PER_INCH, height / _POINTS_PER_INCH))
    # In points, and equal in all panels, so the panels of a column line up.
    left, right, bottom, top = 42, 12 + label_width, 22, 8
    axes = figure.add_axes(
        (left / width, bottom / height, (width - left - right) / width, (height - bottom - top) / height)
    )
    return figure, axes


def _set_y_range(axes: Axes, lines: Sequence[Line], frame: Frame) -> None:
    values = np.concatenate([line.values[np.isfinite(line.values)] for line in lines])
    if frame.log:
        values = values[values > 0]
    if frame.reference is not None:
        values = np.append(values, frame.reference)
    low, high = float(values.min()), float(values.max())
    if frame.log:
        low, high = low / 1.25, high * 1.25
    else:
        margin = 0.06 * (high - low) or 0.06 * abs(high) or 0.5
        low, high = low - margin, high + margin
    if frame.percent:
        low, high = 0.0, max(high, 0.01)
    bottom, top = frame.limits
    axes.set_ylim(low if bottom is None else bottom, high if top is None else top)
    if frame.zero:
        axes.set_ylim(min(0.0, axes.get_ylim()[0]), max(0.0, axes.get_ylim()[1]))
        axes.axhline(0, color=AXIS, linewidth=1.0, zorder=2)
    if frame.reference is not None:
        axes.axhline(frame.reference, color=REFERENCE, linewidth=1.2, linestyle=(0, (5, 3)), zorder=2.5)
        _name_reference(axes, lines, frame, frame.reference)


def _has_neighbour(finite: Bool[np.ndarray, " points"]) -> Bool[np.ndarray, " points"]:
    """Return which points have a finite neighbour, so a line leads to them."""
    padded = np.pad(finite, 1)
    return padded[:-2] | padded[2:]


def _name_reference(axes: Axes, lines: Sequence[Line], frame: Frame, reference: float) -> None:
    """Write the reference's name above or below its line, left or right, farthest from the curves."""
    low, high = axes.get_ylim()

    def height(y: Any) -> Any:
        """Return the height of y in the panel, 0 to 1."""
        if frame.log:
            return np.log(np.maximum(y, low) / low) / math.log(high / low)
        return (y - low) / (high - low)

    def clearance(right: bool, side: int) -> float:
        middle = height(reference) + side * 0.07  # of the text
        if not 0.06 < middle < 0.96:
            return -1.0
        x = np.linspace(0.6, 1.0, 24) if right else np.linspace(0.0, 0.4, 24)
        nearest = 1.0
        for line in lines:
            known = np.isfinite(line.values)
            curve = np.interp(x * max(1, frame.last_step), line.steps[known], line.values[known])
            nearest = min(nearest, float(np.abs(height(curve) - middle).min()))
        return nearest

    places = [(True, 1), (True, -1), (False, 1), (False, -1)]
    right, side = max(places, key=lambda place: clearance(*place))
    axes.annotate(
        frame.reference_label,
        (1 if right else 0, reference),
        xycoords=("axes fraction", "data"),
        xytext=(-2 if right else 2, 3 * side),
        textcoords="offset points",
        ha="right" if right else "left",
        va="bottom" if side > 0 else "top",
        fontsize=9.5,
        color=REFERENCE,
    )


def _label_width(lines: Sequence[Line]) -> float:
    """Return the width of the longest label in points, up to the maximum width."""
    longest = max(len(line.label) for line in lines)
    return min(longest * _LABEL_CHARACTER, _MAX_LABEL) if longest else 0.0


def _label_ends(axes: Axes, lines: Sequence[Line], frame: Frame) -> None:
    """Write the labels right of the axes, each as near to the end of its line as possible."""
    labelled = [line for line in lines if line.label]
    if not labelled:
        return
    ends = [line.values[np.isfinite(line.values)][-1] for line in labelled]
    height = axes.get_position().height * frame.size[1]
    to_axes = axes.transData + axes.transAxes.inverted()
    wanted = [float(to_axes.transform((0.0, end))[1]) * height for end in ends]
    order = np.argsort(wanted)
    places = spread([wanted[index] for index in order], _LABEL_HEIGHT, height)
    for index, place in zip(order, places, strict=True):
        label = labelled[index].label
        most = int(_MAX_LABEL / _LABEL_CHARACTER)
        axes.annotate(
            label if len(label) <= most else label[: most - 1] + "…",
            (1.0, place / height),
            xycoords="axes fraction",
            xytext=(7, 0),
            textcoords="offset points",
            va="center_baseline",
            fontsize=9,
            color=labelled[index].colour,
        )


def spread(wanted: Sequence[float], distance: float, height: float) -> list[float]:
    """Return ascending places from 0 to `height`, at least `distance` apart, near the wanted ones.

    Args:
        wanted: the wanted places, ascending.
        distance: the minimum distance; less if there is not enough room.
        height: the maximum place.
    """
    distance = min(distance, height / max(len(wanted) - 1, 1))
    # Spread each run of places that are too close around its mean; it may then meet the next run.
    runs: list[tuple[float, int]] = []
    for place in wanted:
        middle, number = min(max(place, 0.0), height), 1
        runs.append((middle, number))
        while len(runs) > 1:
            (below, less), (above, more) = runs[-2:]
            if above - below >= distance * (less + more) / 2:
                break
            both = less + more
            middle, reach = (below * less + above * more) / both, distance * (both - 1) / 2
            runs[-2:] = [(min(max(middle, reach), height - reach), both)]
    return [
        middle + distance * (each - (number - 1) / 2) for middle, number in runs for each in range(number)
    ]


def _finish_axes(axes: Axes, frame: Frame) -> None:
    axes.set_xlim(frame.first_step, max(frame.first_step + 1, frame.last_step))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(_short_number))
    low, high = axes.get_ylim()
    if frame.log:
        axes.yaxis.set_major_locator(FixedLocator(_log_ticks(low, high)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    # One notation per axis: 7.5e−4 next to 0.001 would be hard to compare.
    small = not frame.log and max(abs(low), abs(high)) < 0.002
    axes.yaxis.set_major_formatter(
        FuncFormatter(_percent if frame.percent else _tiny if small else _short_number)
    )
    axes.tick_params(which="both", bottom=False, left=False, labelcolor=QUIET, labelsize=9.5, pad=4)
    axes.grid(True, axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(AXIS)
        spine.set_linewidth(0.9)


def _log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten, or finer round numbers if there are fewer than three powers."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        ticks = [digit * 10.0**decade for decade in decades for digit in digits]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= 3:
            break
    return ticks


def _percent(value: float, position: Any) -> str:
    return f"{100 * value:.4g}%"


def _tiny(value: float, position: Any = None) -> str:
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}".replace("-", "−")


def _short_number(value: float, position: Any) -> str:
    size = abs(value)
    for min_size, divisor, unit in ((1e9, 1e9, "B"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if size >= min_size:
            return f"{value / divisor:.4g}{unit}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−") if size == 0 or size >= 1e-4 else _tiny(value)
