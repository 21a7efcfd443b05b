"""The page of a search: one HTML file with shares, losses, the test of the law, and its curves."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from birdie_jax.mixture_search.findings import Findings
from birdie_jax.reporting.page import page_environment
from birdie_jax.reporting.svg import (
    ACCENT,
    DASHES,
    QUIET,
    REFERENCE,
    TOOLTIP,
    class_colour,
    default_style,
    inline_svg,
    labelled_axes,
)

_SIZE = (5.4, 3.4)
_CURVE_POINTS = 60
_SURFACE_POINTS = 40
_CONTOURS = 8


class TableRow(NamedTuple):
    """A row of a table.

    Attributes:
        name: the header of the row.
        cells: the text of each column.
    """

    name: str
    cells: Sequence[str]


def share_rows(findings: Findings) -> list[TableRow]:
    """Return the shares of each mixture by class, and its objective."""
    design, mixtures = findings.design, findings.mixtures
    rows = []
    for stage in range(design.stages):
        for column, name in enumerate(design.classes):
            label = f"{name}, stage {stage + 1}" if design.stages > 1 else name
            rows.append(TableRow(label, [f"{one.shares[stage, column]:.1%}" for one in mixtures]))
    measured = [_number(None if one.losses is None else findings.objective(one.losses)) for one in mixtures]
    predicted = [f"{_number(findings.objective(one.predicted))} ± {findings.error:.4f}" for one in mixtures]
    return [*rows, TableRow("objective, measured", measured), TableRow("objective, predicted", predicted)]


def loss_rows(findings: Findings) -> list[TableRow]:
    """Return each class's measured losses, its predicted loss of the found mixture, and the law's error."""
    errors = np.abs(findings.left_out - findings.losses).mean(axis=0)
    return [
        TableRow(
            name,
            [
                f"{findings.weights[row]:.2f}",
                *(
                    _number(None if one.losses is None else one.losses[row])
                    for one in findings.mixtures[:-1]
                ),
                _number(findings.found.predicted[row]),
                _number(errors[row]),
            ],
        )
        for row, name in enumerate(findings.measured)
    ]


def text_table(findings: Findings) -> str:
    """Return the table of `share_rows` as text."""
    head = TableRow("", [one.name for one in findings.mixtures])
    rows = [head, *share_rows(findings)]
    first = max(len(row.name) for row in rows)
    widths = [max(len(row.cells[column]) for row in rows) for column in range(len(head.cells))]
    return "\n".join(
        "  ".join([f"{row.name:<{first}}", *map(str.rjust, row.cells, widths)]) for row in rows
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def left_out_plot(findings: Findings) -> str:
    """Return a plot of the objective of each proxy against its leave-one-out prediction."""
    figure, axes = labelled_axes(_SIZE, "objective, predicted by the other proxies", "objective, measured")
    predicted, measured = (findings.objectives(each) for each in (findings.left_out, findings.losses))
    ends = [min(predicted.min(), measured.min()), max(predicted.max(), measured.max())]
    axes.plot(ends, ends, color=REFERENCE, linestyle=DASHES[1], linewidth=1)
    tooltips = []
    for number, x, y in zip(findings.numbers, predicted, measured, strict=True):
        _point(axes, (x, y), ACCENT, tooltips, f"proxy {number}: {y:.4f}, predicted {x:.4f}")
    return _svg(figure, "Measured objective against its prediction by the other proxies", tooltips)


def with_shares(
    mixture: Float64[np.ndarray, "stages classes"],
    stage: int,
    columns: Sequence[int],
    shares: Float64[np.ndarray, "points columns"],
) -> Float64[np.ndarray, "points stages classes"]:
    """Return the mixture with other shares of some classes in one stage, and the rest in proportion."""
    varied = np.tile(mixture, (len(shares), 1, 1))
    others = 1 - mixture[stage, columns].sum()
    varied[:, stage] *= ((1 - shares.sum(axis=1)) / max(others, 1e-12))[:, None]
    varied[:, stage, columns] = shares
    return varied


def surface_plot(findings: Findings, stage: int) -> str:
    """Return a plot of the predicted objective over the shares of the two largest classes of a stage.

    The design must have three classes or more.
    """
    found, names = findings.found.shares, findings.design.classes
    first, second = sorted(np.argsort(found[stage])[-2:].tolist())
    figure, axes = labelled_axes(_SIZE, f"share of {names[first]}", f"share of {names[second]}")
    tried = findings.shares[:, stage][:, [first, second]]
    x, y = np.meshgrid(*(np.linspace(0.0, largest, _SURFACE_POINTS) for largest in tried.max(axis=0)))
    inside = x + y <= 1
    varied = with_shares(found, stage, [first, second], np.stack([x[inside], y[inside]], axis=1))
    surface = np.full(x.shape, np.nan)
    surface[inside] = findings.objectives(findings.law.predict(varied.reshape(len(varied), -1)))
    # A constant surface has no contours.
    if np.ptp(surface[inside]) > 0:
        lines = axes.contour(x, y, surface, _CONTOURS, colors=ACCENT, linewidths=1)
        axes.clabel(lines, fmt="%.2f", fontsize=8)
    tooltips: list[str] = []
    objectives = findings.objectives(findings.losses)
    for number, place, objective in zip(findings.numbers, tried, objectives, strict=True):
        _point(axes, tuple(place), QUIET, tooltips, f"proxy {number}: {objective:.4f}")
    axes.plot(*found[stage, [first, second]], "x", color=ACCENT, markersize=9, markeredgewidth=2)
    return _svg(figure, f"Objective by shares of {names[first]} and {names[second]}", tooltips)


def class_plot(findings: Findings, column: int) -> str:
    """Return a plot of the predicted objective against the share of a class in the found mixture.

    Args:
        findings: the findings of the search.
        column: the number of the class in the design.
    """
    stages, name = findings.design.stages, findings.design.classes[column]
    figure, axes = labelled_axes(_SIZE, f"share of {name}", "objective")
    tooltips: list[str] = []
    objectives = findings.objectives(findings.losses)
    for stage in range(stages):
        colour, label = class_colour(stage), f"stage {stage + 1}"
        tried = findings.shares[:, stage, column]
        for number, share, objective in zip(findings.numbers, tried, objectives, strict=True):
            _point(
                axes, (share, objective), colour, tooltips, f"proxy {number}: {share:.1%}, {objective:.4f}"
            )
        shares = np.linspace(0.0, tried.max(), _CURVE_POINTS)
        varied = with_shares(findings.found.shares, stage, [column], shares[:, None])
        predicted = findings.objectives(findings.law.predict(varied.reshape(len(shares), -1)))
        axes.plot(shares, predicted, color=colour, label=label)
        here = findings.found.shares[stage, column]
        axes.axvline(here, color=colour, linestyle=DASHES[2], linewidth=1)
    if stages > 1:
        axes.legend(frameon=False, labelcolor=QUIET, fontsize=9)
    return _svg(figure, f"Objective by share of {name}", tooltips)


def _point(axes: Axes, place: tuple[float, ...], colour: str, tooltips: list[str], tooltip: str) -> None:
    (point,) = axes.plot(*place, "o", color=colour, markersize=4.5, markeredgewidth=0, alpha=0.7)
    point.set_gid(f"{TOOLTIP}{len(tooltips)}")
    tooltips.append(tooltip)


def _svg(figure: Figure, label: str, tooltips: list[str]) -> str:
    return inline_svg(figure, label, tooltips, max_width=72 * _SIZE[0] * 1.4)


def render_page(findings: Findings, title: str, base: str, command: str) -> str:
    """Return the HTML of the page.

    Args:
        findings: the findings of the search.
        title: the name of the search.
        base: the configuration of the proxies.
        command: the command to train with the found mixture.
    """
    with default_style():
        test = left_out_plot(findings)
        # With two classes, the share of one leaves no choice for the other.
        surfaces = [
            (f"stage {stage + 1}" if findings.design.stages > 1 else "", surface_plot(findings, stage))
            for stage in range(findings.design.stages)
            if len(findings.design.classes) > 2
        ]
        plots = [
            (name, class_plot(findings, column)) for column, name in enumerate(findings.design.classes)
        ]
    environment = page_environment(Path(__file__).parent / "templates")
    return environment.get_template("search_page.html").render(
        title=title,
        base=base,
        command=command,
        findings=findings,
        names=[one.name for one in findings.mixtures],
        warnings=findings.warnings(),
        shares=share_rows(findings),
        losses=loss_rows(findings),
        test=test,
        surfaces=surfaces,
        plots=plots,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
