"""The page of what pruning costs: plots, the table and the texts, one HTML file without outside names."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from birdie_jax import reporting
from birdie_jax.pruning_cost.cells import DENSE
from birdie_jax.pruning_cost.layer_flow import LayerFlow
from birdie_jax.pruning_cost.plots import flow_plot, loss_by_context, loss_by_flops, redundancy_plot
from birdie_jax.pruning_cost.summary import COLUMNS, CellSummary, table_rows
from birdie_jax.pruning_cost.survivors import ReadPart
from birdie_jax.reporting.svg import FIGURE_ID, default_style


@dataclass(frozen=True)
class ShownText:
    """A context as one policy leaves it.

    Attributes:
        title: the policy, the share, and which window it is.
        parts: the parts of the text.
    """

    title: str
    parts: Sequence[ReadPart]


@dataclass(frozen=True)
class FlowPictures:
    """The flow through the layers, with and without pruning.

    Attributes:
        keep: the share of the pruned pass.
        dense: the flow where all layers read all tokens.
        pruned: the flow where they do not.
    """

    keep: float
    dense: LayerFlow
    pruned: LayerFlow


@dataclass(frozen=True)
class PageHeading:
    """What the page is about.

    Attributes:
        name: the name of the model.
        description: what was measured, in a sentence.
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
        heading: what the page is about.
        summaries: what the cells say.
        texts: the texts to show.
        flow: the flow through the layers; None: it was not measured.
    """
    folders = [Path(__file__).parent / "templates", Path(reporting.__file__).parent / "templates"]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers = itertools.count()

    def number_figure(svg: str) -> Markup:
        # Plots are markup of our own, escaped where it was made; ids are shared by the whole page.
        return Markup(svg.replace(FIGURE_ID, f"s{next(numbers)}"))

    environment.filters["svg"] = number_figure
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
    return environment.get_template("pruning_page.html").render(
        name=heading.name,
        description=heading.description,
        plots=plots,
        columns=COLUMNS,
        rows=table_rows(summaries),
        layers=heading.layers,
        texts=texts,
    )
