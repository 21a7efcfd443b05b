"""Figures of the available results: the Birdie paper's Figures 1, 2 and 3 with the study's numbers."""

import itertools
from collections import defaultdict
from collections.abc import Iterator

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from studies.comparison import Scored, mean_with_interval
from studies.figure_style import label_ends, series_area, series_colour, series_marker
from studies.retrieval.conditions import (
    Condition,
    Measure,
    Results,
    conditions_of,
    grouped_scores,
    scores_of,
    tasks_at,
)
from studies.retrieval.fine_tuning import EXTRACTION, PHONEBOOK
from studies.retrieval.plans import PROCEDURES

_SIZE = (10.0, 4.2)
_MIXTURES_A_ROW = 3


def figures_of(results: Results) -> Iterator[tuple[str, Figure]]:
    """Yield the names and figures that the results of a scale allow."""
    for name, draw in (
        ("phonebook", _phonebook),
        ("learning_curves", _learning_curves),
        ("passages", _passages),
        ("mixture", _mixture),
    ):
        figure = Figure(figsize=_SIZE, layout="constrained")
        if draw(results, figure):
            yield name, figure


def _styles(results: Results) -> dict[Condition, dict[str, str]]:
    """Return the line style of each condition: the procedure sets the colour, the model the dashes."""
    conditions = list(conditions_of(results))
    models = list(dict.fromkeys(condition.model for condition in conditions))
    dashes = dict(zip(models, itertools.cycle(("-", "--", "-."))))
    procedures = list(PROCEDURES)
    return {
        condition: {
            "color": series_colour(procedures.index(condition.procedure)),
            "marker": series_marker(procedures.index(condition.procedure)),
            "linestyle": dashes[condition.model],
        }
        for condition in conditions
    }


def _legend(figure: Figure, axes: Axes) -> None:
    """Put the legend of one panel below all panels."""
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="x-small"
    )


def _line(
    axes: Axes, scores: dict[int, Scored], condition: Condition, style: dict[str, str]
) -> tuple[str, float, str]:
    """Draw means and intervals by the keys of `scores`; return the label of the line's end."""
    found = {value: mean_with_interval(scored) for value, scored in scores.items()}
    means = [one.mean for one in found.values()]
    axes.plot(list(found), means, label=condition.title, **style)
    low, high = [one.low for one in found.values()], [one.high for one in found.values()]
    axes.fill_between(list(found), low, high, color=style["color"], alpha=0.12)
    return condition.title, means[-1], style["color"]


def _phonebook(results: Results, figure: Figure) -> bool:
    """Draw Figure 1: accuracy by the count of queried numbers, and also by the entries of the book."""
    first = tasks_at(next(iter(results.values())), PHONEBOOK)
    left, right = figure.subplots(1, 2, sharey=True)
    entries = {name: int(name.removeprefix("entries_")) for name in first if name.startswith("entries_")}
    numbers = {name: int(name.removeprefix("numbers_")) for name in first if name.startswith("numbers_")}
    labels = []
    for condition, style in _styles(results).items():
        seeds = conditions_of(results)[condition]
        label = ("", float("nan"), "")
        for axes, cells in ((left, entries), (right, numbers)):
            scores = {
                count: scores_of(
                    results, condition, seeds, Measure("", PHONEBOOK, (name,), "number_accuracy")
                )
                for name, count in cells.items()
            }
            label = _line(axes, scores, condition, style)
        labels.append(label)
    guessed = [1 / count for count in entries.values()]
    left.plot(list(entries.values()), guessed, color="black", linestyle=":", label="copying any entry")
    for axes, cells in ((left, entries), (right, numbers)):
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(cells.values()), [str(count) for count in cells.values()])
        axes.set_ylim(0, 1)
    left.set_xlabel("entries of the book, one number asked for")
    right.set_xlabel("numbers asked for")
    left.set_ylabel("share of numbers right")
    label_ends(right, labels)
    left.legend(*([each[-1]] for each in left.get_legend_handles_labels()), fontsize="x-small")
    return True


def _learning_curves(results: Results, figure: Figure) -> bool:
    """Draw the share of exact validation answers during fine-tuning with the chosen rate."""
    first = next(iter(results.values()))["fine_tuned"][PHONEBOOK]
    cells = [name for name in first["commonest_digits"] if name.startswith("entries_")]
    panels = figure.subplots(1, len(cells), sharey=True, squeeze=False)[0]
    for axes, cell in zip(panels, cells, strict=True):
        for condition, style in _styles(results).items():
            for run, result in results.items():
                if (run.model, run.procedure) != condition:
                    continue
                found = result["fine_tuned"][PHONEBOOK]
                rate = found["chosen"]["learning_rate"]
                curve = next(one["curve"] for one in found["grid"] if one["learning_rate"] == rate)
                steps = [point["step"] for point in curve]
                axes.plot(steps, [point[f"{cell}/exact_match"] for point in curve], markersize=3, **style)
        axes.axhline(1 / int(cell.removeprefix("entries_")), color="black", linestyle=":")
        axes.set_title(cell.replace("_", " "))
        axes.set_xlabel("steps")
        axes.set_ylim(0, 1)
    panels[0].set_ylabel("share of answers exactly right")
    for condition, style in _styles(results).items():
        panels[-1].plot([], [], label=condition.title, **style)
    _legend(figure, panels[-1])
    return True


def _passages(results: Results, figure: Figure) -> bool:
    """Draw Figure 2: F1 of questions on passages by the length of the passage."""
    axes = figure.subplots()
    measure = Measure("", EXTRACTION, (EXTRACTION,), "f1")
    labels = [
        _line(axes, grouped_scores(results, condition, measure, "passage_tokens"), condition, style)
        for condition, style in _styles(results).items()
    ]
    axes.set_xlabel("largest number of tokens of the passage")
    axes.set_ylabel("F1")
    axes.set_ylim(bottom=0)
    label_ends(axes, labels)
    return True


def _mixture(results: Results, figure: Figure) -> bool:
    """Draw Figure 3: the probability of each class of arms over the steps of a run with a bandit."""
    chosen = [
        (run, result) for run, result in results.items() if PROCEDURES[run.procedure].policy == "birdie"
    ]
    if not chosen:
        return False
    columns = min(len(chosen), _MIXTURES_A_ROW)
    grid = figure.subplots(-(-len(chosen) // columns), columns, sharey=True, squeeze=False)
    for axes in grid.flat[len(chosen) :]:
        axes.set_axis_off()
    for axes, (run, result) in zip(grid.flat, chosen, strict=False):
        decisions = result["pretraining"]["mixture"]
        shares: dict[str, list[float]] = defaultdict(list)
        for decision in decisions:
            for group, probability in decision["probabilities"].items():
                shares[group].append(probability)
        colours = [series_area(number) for number in range(len(shares))]
        steps = [one["step"] for one in decisions]
        axes.stackplot(steps, list(shares.values()), labels=list(shares), colors=colours)
        axes.set_title(f"{run.model}, {run.procedure}, seed {run.seed}", fontsize="small")
        axes.set_xlabel("steps")
        axes.set_ylim(0, 1)
    for axes in grid[:, 0]:
        axes.set_ylabel("probability")
    _legend(figure, grid[0, 0])
    return True
