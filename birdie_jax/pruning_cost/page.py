"""The page of `prune`: plots, table and texts in one HTML file without external references."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from birdie_jax.evaluation_record import Interval
from birdie_jax.pruning_cost.cells import COLUMNS, DENSE, CellSummary, table_rows
from birdie_jax.pruning_cost.pruned_prompts import LayerFlow, ReadPart
from birdie_jax.reporting.page import page_environment
from birdie_jax.reporting.svg import (
    DASHES,
    QUIET,
    REFERENCE,
    TOOLTIP,
    class_colour,
    default_style,
    inline_svg,
    labelled_axes,
)

_SIZE = (5.6, 3.4)
_MEGA = 1e6
# In nats per token: differences of thousandths look small.
_LEAST_LOSS_SPAN = 0.1


class Curve(NamedTuple):
    """A curve of a panel.

    Attributes:
        name: its name.
        x: the horizontal coordinates of its points.
        y: the vertical coordinates; one that is not finite leaves a gap.
        colour: a colour code of `reporting.svg`.
        dashed: whether it is dashed.
        intervals: the interval around each point; empty: none.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    dashed: bool = False
    intervals: Sequence[Interval] = ()


def draw_curves(
    curves: Sequence[Curve], x_label: str, y_label: str, label: str, least_span: float = 0.0
) -> str:
    """Return the SVG of curves, with their points and a legend.

    Args:
        curves: at least one curve.
        x_label: the label of x.
        y_label: the label of y.
        label: the description for screen readers.
        least_span: the minimum span of the y axis.
    """
    figure, axes = labelled_axes(_SIZE, x_label, y_label)
    tooltips = []
    for number, curve in enumerate(curves):
        (line,) = axes.plot(
            curve.x,
            curve.y,
            color=curve.colour,
            linestyle=DASHES[1] if curve.dashed else "-",
            marker="o",
            markersize=4,
            markeredgewidth=0,
            label=curve.name,
        )
        line.set_gid(f"{TOOLTIP}{number}")
        tooltips.append(curve.name)
        if curve.intervals:
            low, high = [each.low for each in curve.intervals], [each.high for each in curve.intervals]
            axes.vlines(curve.x, low, high, color=curve.colour, linewidth=1, alpha=0.6)
    low, high = axes.get_ylim()
    missing = least_span - (high - low)
    if missing > 0:
        axes.set_ylim(low - missing / 2, high + missing / 2)
    axes.legend(frameon=False, labelcolor=QUIET, fontsize=9)
    return inline_svg(figure, label, tooltips, max_width=72 * _SIZE[0] * 1.4)


def loss_by_flops(summaries: Sequence[CellSummary], context: int) -> str:
    """Return a plot of loss against FLOPs at a length of context (Figures 3, 4): one curve per policy."""
    here = [one for one in summaries if one.context == context]
    own = [one for one in here if one.model == summaries[0].model]
    (dense,) = (one for one in own if one.policy == DENSE)
    curves = []
    for number, policy in enumerate(_policies(own)):
        points = sorted(
            (one for one in own if one.policy == policy), key=lambda one: one.paper_flops, reverse=True
        )
        points = [dense, *points]
        curves.append(
            Curve(
                policy,
                [one.paper_flops / _MEGA for one in points],
                [one.loss.mean for one in points],
                class_colour(number),
                intervals=[one.loss for one in points],
            )
        )
    others = [one for one in here if one.model != summaries[0].model]
    curves += [
        Curve(
            f"dense: {one.model}",
            [one.paper_flops / _MEGA],
            [one.loss.mean],
            REFERENCE,
            intervals=[one.loss],
        )
        for one in others
    ]
    return draw_curves(
        curves,
        "MFLOPs of reading the context (paper's unit)",
        "loss (nats a token)",
        f"Loss against FLOPs by policy, contexts of {context} tokens",
        _LEAST_LOSS_SPAN,
    )


def loss_by_context(summaries: Sequence[CellSummary], keep: float) -> str:
    """Return a plot of loss by context length at a share (Table 4): one curve per policy, dense dashed."""
    own = [one for one in summaries if one.model == summaries[0].model]

    def curve(name: str, policy: str, share: float, colour: str) -> Curve:
        points = [one for one in own if (one.policy, one.keep) == (policy, share)]
        return Curve(
            name,
            [one.context for one in points],
            [one.loss.mean for one in points],
            colour,
            dashed=policy == DENSE,
            intervals=[one.loss for one in points],
        )

    curves = [curve(DENSE, DENSE, 1.0, REFERENCE)]
    for number, policy in enumerate(_policies(own)):
        curves.append(curve(policy, policy, keep, class_colour(number)))
    return draw_curves(
        curves,
        "tokens of the context",
        "loss (nats a token)",
        f"Loss by length of context, keep {keep:g}",
        _LEAST_LOSS_SPAN,
    )


def flow_plot(flow: LayerFlow, name: str) -> str:
    """Return a plot of influence by part of the prompt (Figure 5): one curve per layer, darker upwards."""
    layers, bins = flow.flow.shape
    shades = np.linspace(90, 10, layers).astype(int)
    curves = [
        Curve(
            f"layer {layer}",
            list(range(1, bins + 1)),
            flow.flow[layer].tolist(),
            class_colour(0, int(shade)),
        )
        for layer, shade in enumerate(shades)
    ]
    return draw_curves(
        curves,
        "part of the prompt, from its beginning",
        "influence of a token",
        f"Information flow by layer, {name}",
    )


def redundancy_plot(dense: LayerFlow, pruned: LayerFlow) -> str:
    """Return a plot of adjacent tokens' cosine by layer, before and after pruning (Figure 2)."""
    layers = list(range(len(dense.redundancy)))
    curves = [
        Curve(f"{what}, {name}", layers, values.tolist(), class_colour(colour), dashed=name == "pruned")
        for name, flow in (("dense", dense), ("pruned", pruned))
        for colour, (what, values) in enumerate(
            (("block", flow.redundancy), ("mixer", flow.mixer_redundancy))
        )
    ]
    return draw_curves(
        curves, "layer", "cosine of adjacent tokens", "Redundancy of tokens by layer, dense and pruned"
    )


def _policies(summaries: Sequence[CellSummary]) -> list[str]:
    return list(dict.fromkeys(one.policy for one in summaries if one.policy != DENSE))


@dataclass(frozen=True)
class ShownText:
    """A context after pruning with one policy.

    Attributes:
        title: the policy, the share and the window.
        parts: the parts of the text.
    """

    title: str
    parts: Sequence[ReadPart]


@dataclass(frozen=True)
class FlowPictures:
    """The flow through the layers, with and without pruning.

    Attributes:
        keep: the share of the pruned pass.
        dense: the flow without pruning.
        pruned: the flow with pruning.
    """

    keep: float
    dense: LayerFlow
    pruned: LayerFlow


@dataclass(frozen=True)
class PageHeading:
    """The subject of the page.

    Attributes:
        name: the name of the model.
        description: a sentence about the measurement.
        layers: the number of layers of the model.
    """

    name: str
    description: str
    layers: int


def render_page(
    heading: PageHeading,
    summaries: Sequence[CellSummary],
    texts: Sequence[ShownText],
    flow: FlowPictures | None,
) -> str:
    """Return the HTML of the page.

    Args:
        heading: the subject of the page.
        summaries: the summaries of the cells.
        texts: the texts to show.
        flow: the flow through the layers; None: not measured.
    """
    contexts = sorted({one.context for one in summaries})
    shares = sorted({one.keep for one in summaries if one.policy != DENSE}, reverse=True)
    with default_style():
        plots = [
            (f"Loss against FLOPs, {each:,} tokens", loss_by_flops(summaries, each)) for each in contexts
        ]
        if len(contexts) > 1:
            plots += [
                (f"Loss by context, keep {share:g}", loss_by_context(summaries, share)) for share in shares
            ]
        if flow is not None:
            plots += [
                ("Information flow, dense", flow_plot(flow.dense, "dense")),
                (f"Information flow, keep {flow.keep:g}", flow_plot(flow.pruned, f"keep {flow.keep:g}")),
                (f"Redundancy, keep {flow.keep:g}", redundancy_plot(flow.dense, flow.pruned)),
            ]
    environment = page_environment(Path(__file__).parent / "templates")
    return environment.get_template("pruning_page.html").render(
        name=heading.name,
        description=heading.description,
        plots=plots,
        columns=COLUMNS,
        rows=table_rows(summaries),
        layers=heading.layers,
        texts=texts,
    )
