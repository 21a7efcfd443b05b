"""Figures of a scale with the curriculum: one dot per run."""

from collections.abc import Iterator
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from studies.figure_style import MARKERS, series_colour, series_marker
from studies.retrieval.conditions import Condition, Results
from studies.retrieval.plans import Run, Scale
from studies.retrieval.worth import Outcome, numbers_of_state, outcome_of, titles_of

_SIZE = (8.0, 5.0)
_BYTES = 4


def worth_figures(scale: Scale, results: Results) -> Iterator[tuple[str, Figure]]:
    """Yield figures with one dot per run.

    They show fine-tuning steps by bits per byte of held-out text and, if models differ in their state,
    exact answers by bytes of state.
    """
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    for _, one, style in _styled(scale, results):
        every = [one.cap if steps is None else steps for steps in one.times]
        axes.plot([one.bits, one.bits], [min(every), max(every)], color=style["color"], alpha=0.4)
        fill = "none" if one.median is None else style["color"]
        axes.plot(one.bits, one.median or one.cap, markerfacecolor=fill, **style)
    axes.axhline(scale.phonebook_tuning.steps, color="black", linestyle=":")
    axes.set_xlabel("held-out text, bits a byte")
    axes.set_ylabel("fine-tuning steps to half right (hollow: never)")
    axes.set_xscale("log")
    for ticks in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        ticks(StrMethodFormatter("{x:g}"))
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=2, fontsize="x-small")
    yield "worth", figure
    if len({run.model for run in results}) > 1:
        yield "state", _draw_states(scale, results)


def _styled(scale: Scale, results: Results) -> Iterator[tuple[Run, Outcome, dict[str, Any]]]:
    """Yield each run with its outcome and its style; the first dot of a condition has its title.

    With several models, each has a colour, and each procedure a marker.
    """
    titles, titled = titles_of(results), set()
    models, procedures = (list(dict.fromkeys(names)) for names in zip(*titles, strict=True))
    for run, result in results.items():
        condition = Condition(run.model, run.procedure)
        number = procedures.index(run.procedure)
        style = {"marker": series_marker(number), "color": series_colour(number), "linestyle": "none"}
        if len(models) > 1:
            style |= {
                "marker": MARKERS[number % len(MARKERS)],
                "color": series_colour(models.index(run.model)),
            }
        label = "" if condition in titled else titles[condition]
        yield run, outcome_of(result, scale.phonebook_tuning.steps), {**style, "label": label}
        titled.add(condition)


def _draw_states(scale: Scale, results: Results) -> Figure:
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    for run, one, style in _styled(scale, results):
        cell = list(one.exact)[-1]
        axes.plot(_BYTES * numbers_of_state(run), 100 * one.exact[cell], **style)
        axes.set_ylabel(f"{cell.replace('_', ' ')}, % exact")
    axes.set_xlabel("bytes of state of a row, float32")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_ylim(0, 100)
    figure.legend(loc="outside lower center", ncols=2, fontsize="x-small")
    return figure
