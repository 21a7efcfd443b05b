"""Section: the mixtures that the bandit chose, and every arm at every decision."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, LogNorm, Normalize, TwoSlopeNorm
from matplotlib.figure import Figure

from birdie_jax.reporting import curves
from birdie_jax.reporting.plots import Frame, Line, area_panel, class_legend, line_panel, spans_widely
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.section import Panel, PanelGroup, Section, SectionKind
from birdie_jax.reporting.svg import AXIS, PANEL, QUIET, class_colour, class_dash, inline_svg

# From nearly white to deep: darkness shows the value on paper and in both themes.
SEQUENTIAL = LinearSegmentedColormap.from_list(
    "sequential", ["#f4f1e6", "#c9dfc0", "#7cc0b4", "#3a8fb0", "#2c5a9c", "#2b2a63"]
)
DIVERGING = LinearSegmentedColormap.from_list(
    "diverging", ["#a3412a", "#e3a47f", "#f4f1e6", "#86b4cf", "#2a5f98"]
)

Length = float | int
_NAMES, _STRIP, _COLUMN, _GAP, _TOP, _BOTTOM = 268, 8, 290, 14, 46, 24  # points


@dataclass(frozen=True)
class Heatmap:
    """A quantity of all arms at all decisions.

    Attributes:
        title: the name of the quantity, with its unit.
        values: the values; NaN is white.
        norm: the function from values to 0..1.
        colours: the function from 0..1 to colours.
        ticks: the values to mark on the colour bar.
        tick_labels: the labels of the ticks.
    """

    title: str
    values: Float[np.ndarray, "decisions arms"]
    norm: Normalize
    colours: Colormap
    ticks: tuple[float, ...]
    tick_labels: tuple[str, ...]


def probability_heatmap(values: Float[np.ndarray, "decisions arms"], title: str) -> Heatmap:
    """Return the mixtures' probabilities on a logarithmic scale: three decades below the largest.

    Args:
        values: the probability of each arm after each decision.
        title: the name of the probabilities.
    """
    high = float(np.nanmax(values))
    low = max(float(np.nanmin(np.where(values > 0, values, np.nan))), high / 1000)
    if low == high:
        low = high / 10
    middle = (low * high) ** 0.5
    return Heatmap(
        f"{title} after the decision (log scale)",
        np.where(np.isnan(values), np.nan, np.clip(values, low, high)),
        LogNorm(low, high),
        SEQUENTIAL,
        (low, middle, high),
        tuple(f"{100 * tick:.2g}%" for tick in (low, middle, high)),
    )


def reward_heatmap(values: Float[np.ndarray, "decisions arms"]) -> Heatmap:
    """Return the rewards on a scale that is symmetric about 0."""
    high = float(np.nanmax(np.abs(values))) or 1.0
    return Heatmap(
        "Reward",
        values,
        TwoSlopeNorm(0.0, -high, high),
        DIVERGING,
        (-high, 0.0, high),
        tuple(f"{tick:.2g}".replace("-", "−") for tick in (-high, 0.0, high)),
    )


def loss_heatmap(values: Float[np.ndarray, "decisions arms"]) -> Heatmap:
    """Return the validation losses, on a logarithmic scale by the same rule as the plots."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if low == high:
        low, high = low - 0.5, high + 0.5
    log = spans_widely([values])
    ticks = (low, (low * high) ** 0.5 if log else (low + high) / 2, high)
    return Heatmap(
        "Validation loss (nats a token" + (", log scale)" if log else ")"),
        values,
        LogNorm(low, high) if log else Normalize(low, high),
        SEQUENTIAL.reversed(),
        ticks,
        tuple(f"{tick:.2f}" for tick in ticks),
    )


def draw_heatmaps(
    heatmaps: Sequence[Heatmap],
    names: Sequence[str],
    classes: Sequence[int],
    steps: Int[np.ndarray, " decisions"],
) -> str:
    """Return the SVG of `heatmaps` side by side, one row per arm.

    Args:
        heatmaps: at least one quantity.
        names: the names of the arms, in the order of the columns of each quantity.
        classes: the index of each arm's class; arms of a class are adjacent.
        steps: the train step of each decision.
    """
    order: list[int] = np.argsort(np.array(classes), kind="stable").tolist()
    row_height = 10.5 if len(names) > 40 else 18.0
    height = _TOP + _BOTTOM + row_height * len(names)
    width = _NAMES + _STRIP + len(heatmaps) * (_COLUMN + _GAP)
    figure = Figure((width / 72, height / 72))

    def axes_at(left: Length, bottom: Length, across: Length, up: Length) -> Axes:
        return figure.add_axes((left / width, bottom / height, across / width, up / height))

    sorted_classes = [classes[arm] for arm in order]
    borders = [row for row in range(1, len(order)) if sorted_classes[row] != sorted_classes[row - 1]]
    for column, heatmap in enumerate(heatmaps):
        left = _NAMES + _STRIP + column * (_COLUMN + _GAP)
        axes = axes_at(left, _BOTTOM, _COLUMN, row_height * len(names))
        image = np.ma.masked_invalid(heatmap.values[:, order].T)
        axes.imshow(image, aspect="auto", interpolation="none", norm=heatmap.norm, cmap=heatmap.colours)
        _bare(axes)
        for border in borders:
            axes.axhline(border - 0.5, color=PANEL, linewidth=1.6)
        marked = np.unique(np.linspace(0, len(steps) - 1, 5).round().astype(int))
        for mark in marked:
            edge = "left" if mark == 0 else "right" if mark == len(steps) - 1 else "center"
            x = {"left": -0.5, "right": mark + 0.5, "center": float(mark)}[edge]
            text = f"step {steps[mark]:,}" if mark == 0 else f"{steps[mark]:,}"
            _write(axes, text, (x, 0), ("data", "axes fraction"), (0, -13), size=9, ha=edge)
        _colour_bar(figure, axes_at(left, height - 30, _COLUMN, 7), heatmap)
        if column == 0:
            _name_rows(axes, [names[arm] for arm in order], sorted_classes, _STRIP + 4, row_height)
            _class_strip(axes_at(_NAMES, _BOTTOM, _STRIP - 3, row_height * len(names)), sorted_classes)
    return inline_svg(
        figure, "Arms by decisions: " + "; ".join(heatmap.title for heatmap in heatmaps), [], 1.08 * width
    )


def _name_rows(
    axes: Axes, names: Sequence[str], classes: Sequence[int], distance: Length, row_height: Length
) -> None:
    font_size = min(9.5, row_height - 2.2)
    for row, (name, group) in enumerate(zip(names, classes, strict=True)):
        text, colour = _shortened(name, font_size), class_colour(group, 25)
        place, shift = ("axes fraction", "data"), (-distance, 0)
        _write(axes, text, (0, row), place, shift, size=font_size, color=colour, ha="right", va="center")


def _class_strip(axes: Axes, classes: Sequence[int]) -> None:
    for row, group in enumerate(classes):
        axes.axhspan(row - 0.5, row + 0.5, color=class_colour(group), linewidth=0)
    axes.set_ylim(len(classes) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    _bare(axes)


def _colour_bar(figure: Figure, axes: Axes, heatmap: Heatmap) -> None:
    ramp = np.linspace(0, 1, 128)[None]
    axes.imshow(
        ramp, aspect="auto", interpolation="none", cmap=heatmap.colours, vmin=0, vmax=1, extent=(0, 1, 0, 1)
    )
    _bare(axes)
    axes.set_title(heatmap.title, fontsize=10.5, color=QUIET, loc="left", pad=5)
    for index, (tick, label) in enumerate(zip(heatmap.ticks, heatmap.tick_labels, strict=True)):
        place = ("left", "center", "right")[index]
        at = (float(heatmap.norm(tick)), 0)
        _write(axes, label, at, ("data", "data"), (0, -2), size=8.5, ha=place, va="top")


def _write(
    axes: Axes,
    text: str,
    at: tuple[Length, Length],
    coordinates: tuple[str, str],
    shift: tuple[Length, Length],
    *,
    size: Length,
    **how: str,
) -> None:
    """Write `text` at a point, shifted by `shift` typographic points."""
    style: dict[str, Any] = {"color": QUIET, "fontsize": size} | how
    axes.annotate(text, at, xycoords=coordinates, xytext=shift, textcoords="offset points", **style)


def _bare(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(AXIS)
        spine.set_linewidth(0)


def _shortened(name: str, font_size: Length) -> str:
    """Shorten a name wider than its column near its beginning, because most arms differ at the end."""
    max_length = int((_NAMES - 8) / (0.58 * font_size))
    return name if len(name) <= max_length else f"{name[:12]}…{name[13 - max_length :]}"


def make_section(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of the bandit, or None if the run has no arms."""
    if not run.arms:
        return None
    panels, heatmaps = _bandit_panels(run), _decision_heatmaps(run)
    unit = "one row per arm, one column per validation, in order of time"
    return Section(
        anchor="bandit",
        link="Bandit",
        title="Bandit",
        introduction=_introduction(run),
        legend=class_legend(run),
        groups=(PanelGroup(panels),),
        wide_panel=Panel("Every arm at every validation", unit, heatmaps) if heatmaps else None,
    )


def _introduction(run: RunRecord) -> str:
    policy, every_steps = run.setting("bandit.policy", str), run.setting("bandit.every_steps", int)
    rewarded = _rewarded_steps(run)
    if not len(rewarded):
        return (
            f"No rewarded decision so far. Policy {policy}; arms are validated every {every_steps:,} steps."
        )
    decisions = "rewarded decision" if len(rewarded) == 1 else "rewarded decisions"
    return (
        f"Policy {policy}, every {every_steps:,} steps: {len(rewarded)} {decisions}, the last at step "
        f"{rewarded[-1]:,}."
    )


def _bandit_panels(run: RunRecord) -> tuple[Panel, ...]:
    """Return panels of the classes' shares of mixture and tokens, and of the effective number of arms."""
    values, steps = run.metrics.arm_values, run.metrics.steps
    last_step = run.last_step
    groups = run.groups
    mixtures = curves.changed_rows(values["probability"])
    probability = values["probability"][mixtures]
    styles = [
        Line(np.zeros(0), np.zeros(0), class_colour(i), dash=class_dash(i), tooltip=group, stairs=True)
        for i, group in enumerate(groups)
    ]
    shares = np.stack([np.nansum(probability[:, arms], axis=1) for arms in groups.values()], axis=1)
    tokens = np.nan_to_num(values["tokens"])
    class_tokens = np.stack([tokens[:, arms].sum(axis=1) for arms in groups.values()], axis=1)
    binned = curves.bin_lines(steps, class_tokens, np.ones_like(class_tokens), 80)
    empty = "No values yet."
    mixture = area_panel(
        steps[mixtures], shares, styles, Frame("Mixture by class", last_step, percent=True)
    )
    seen = area_panel(
        binned.steps, binned.values, styles, Frame("Tokens by class", last_step, percent=True)
    )
    variety_frame = Frame(
        "Effective number of arms",
        last_step,
        (0.0, 1.2 * len(run.arms)),
        reference=float(len(run.arms)),
        reference_label=f"{len(run.arms)} arms",
    )
    variety = line_panel(
        [Line(steps[mixtures], curves.effective_arms(probability), stairs=True)], variety_frame
    )
    meaning = "exp of the mixture's entropy: so many equally likely arms would be as varied."
    return (
        Panel("Mixture", f"{run.probability_title.lower()} by class", mixture, "" if mixture else empty),
        Panel("Tokens", "share of target tokens by class", seen, "" if seen else empty),
        Panel("Variety", "effective number of arms", variety, meaning if variety else empty),
    )


def _decision_heatmaps(run: RunRecord) -> str:
    """Return the heatmaps of all arms and decisions; empty before the first decision.

    A decision is a line with a validation and a mixture on it or on a later line. Quantities that were
    never logged, such as rewards of a fixed mixture, have no heatmap.
    """
    values, steps = run.metrics.arm_values, run.metrics.steps
    rows = curves.decision_rows(values["validation_loss"])
    if not len(rows):
        return ""
    heatmaps: list[Heatmap] = []
    mixture = curves.mixture_after(values["probability"], rows)
    if (mixture > 0).any():
        heatmaps.append(probability_heatmap(mixture, run.probability_title))
    if np.isfinite(values["reward"][rows]).any():
        heatmaps.append(reward_heatmap(values["reward"][rows]))
    heatmaps.append(loss_heatmap(values["validation_loss"][rows]))
    index_of = {group: index for index, group in enumerate(run.groups)}
    return draw_heatmaps(
        heatmaps, [arm.name for arm in run.arms], [index_of[arm.group] for arm in run.arms], steps[rows]
    )


def _rewarded_steps(run: RunRecord) -> Int[np.ndarray, " decisions"]:
    """Return the steps with rewards for the bandit."""
    return run.metrics.steps[curves.decision_rows(run.metrics.arm_values["reward"])]


BANDIT = SectionKind(make_section)
