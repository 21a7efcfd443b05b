"""Figures of the available results: Simba's Figure 3 with the study's numbers, and items among noise."""

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from studies.figure_style import series_colour
from studies.pruning.conditions import Results, needles_of, pruned_results, smaller_result
from studies.pruning.config import NEEDLES
from studies.pruning.plans import Scale

_PANEL = (4.2, 3.6)
_MEGA = 1e6


def figures_of(scale: Scale, results: Results) -> Iterator[tuple[str, Figure]]:
    """Yield the names and figures that the results of a scale allow."""
    if all(run.is_smaller for run in results):
        return
    text = (("flops", _flops), ("needles", _needles))
    for name, draw in text if scale.identifiers is None else (("noise", _noise),):
        figure = Figure(layout="constrained")
        if draw(scale, results, figure):
            yield name, figure


def _colours(names: list[str]) -> dict[str, str]:
    return {name: series_colour(number) for number, name in enumerate(names)}


def _flops(scale: Scale, results: Results, figure: Figure) -> bool:
    """Draw Figure 3: loss against FLOPs by policy, with the smaller dense model; one panel per model."""
    found = list(pruned_results(results))
    # The legend needs the width of two panels.
    figure.set_size_inches(_PANEL[0] * max(2, len(found)), _PANEL[1] + 0.5)
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    context = scale.main_context
    names = list(dict.fromkeys(name for _, _, losses in found for name in losses.policies(context)))
    for axes, (run, _, losses) in zip(panels, found, strict=True):
        dense = losses.dense(context)
        for name, colour in _colours(names).items():
            shares = losses.shares(name, context)
            points = [dense, *(one for keep in shares if (one := losses.get(name, keep, context)))]
            axes.plot(
                [one.paper_flops / _MEGA for one in points],
                [one.losses.mean() for one in points],
                color=colour,
                marker=".",
                linestyle="--" if "," in name else "-",
                label=name,
            )
        smaller = smaller_result(results, run)
        if smaller is not None:
            own = smaller.dense(context)
            _mark_within(axes, own.paper_flops / _MEGA, own.losses.mean(), "smaller model, dense")
        axes.set_title(f"{run.mixer}, seed {run.seed}", fontsize="small")
        axes.set_xlabel("MFLOPs of reading the context")
    panels[0].set_ylabel("loss, nats a token")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize="x-small"
    )
    return True


def _mark_within(axes: Axes, x: float, y: float, label: str) -> None:
    """Mark a point with a star; if it is far outside of the curves, at the edge and with its value."""
    low, high = axes.get_ylim()
    reach = high - low
    if low - reach < y < high + reach:
        axes.plot(x, y, "k*", label=label)
        return
    axes.set_ylim(low, high)
    edge = high if y > high else low
    axes.plot(x, edge, "k*", label=label, clip_on=False)
    axes.annotate(f"{y:.2f}", (x, edge), xytext=(4, -9), textcoords="offset points", fontsize="x-small")


def _needles(scale: Scale, results: Results, figure: Figure) -> bool:
    """Draw accuracy by share: one row of panels per model, one panel per query."""
    found = [
        (run, result["fine_tuned"]) for run, result, _ in pruned_results(results) if result["fine_tuned"]
    ]
    if not found:
        return False
    figure.set_size_inches(_PANEL[0] * len(scale.queries), _PANEL[1] * len(found) + 0.5)
    panels = figure.subplots(len(found), len(scale.queries), squeeze=False, sharey=True)
    for row, (run, fine_tuned) in zip(panels, found, strict=True):
        for axes, query in zip(row, scale.queries, strict=True):
            dense, *needles = needles_of(fine_tuned[f"{NEEDLES}_{query}"])
            for name, colour in _colours(list(scale.needles.policies)).items():
                points = [dense, *(one for one in needles if one.policy == name)]
                means = [one.mean for one in points]
                shares = [one.keep for one in points]
                axes.plot(shares, [one.mean for one in means], color=colour, marker="o", label=name)
                low, high = [one.low for one in means], [one.high for one in means]
                axes.fill_between(shares, low, high, color=colour, alpha=0.1)
            axes.set_title(f"{run.mixer}, query {query}", fontsize="small")
            axes.set_ylim(0, 1)
            axes.set_xlabel("keep")
        row[0].set_ylabel("share of tokens right")
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize="x-small"
    )
    return True


def _noise(scale: Scale, results: Results, figure: Figure) -> bool:
    """Draw accuracy by share for a query: one panel per model, a thin line per seed and its mean."""
    by_mixer: dict[str, list[dict[str, dict[float, float]]]] = {}
    for run, result, _ in pruned_results(results):
        dense, *needles = needles_of(result["fine_tuned"][f"{NEEDLES}_{scale.queries[-1]}"])
        of_seed = {name: {dense.keep: float(dense.accuracy.mean())} for name in scale.needles.policies}
        for one in needles:
            of_seed[one.policy][one.keep] = float(one.accuracy.mean())
        by_mixer.setdefault(run.mixer, []).append(of_seed)
    figure.set_size_inches(_PANEL[0] * max(2, len(by_mixer)), _PANEL[1] + 0.5)
    panels = figure.subplots(1, len(by_mixer), squeeze=False, sharey=True)[0]
    for axes, (mixer, seeds) in zip(panels, by_mixer.items(), strict=True):
        for name, colour in _colours(list(scale.needles.policies)).items():
            lines = np.array([list(of_seed[name].values()) for of_seed in seeds])
            shares = list(seeds[0][name])
            axes.plot(shares, lines.T, color=colour, linewidth=0.6, alpha=0.5)
            axes.plot(shares, lines.mean(axis=0), color=colour, marker="o", label=name)
        axes.set_title(f"{mixer}, query {scale.queries[-1]}, seeds: {len(seeds)}", fontsize="small")
        axes.set_ylim(0, 1)
        axes.set_xlabel("keep")
    panels[0].set_ylabel("share of tokens right")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize="x-small"
    )
    return True
