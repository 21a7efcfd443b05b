"""Tables of the available results, and the paper's Figures 5 and 6 with the study's numbers."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from birdie_jax.tasks import LENGTH_GROUP
from studies.comparison import Scored, by_group, gather, mean_with_interval, paired_difference
from studies.encoders.kernels import kernel_figures
from studies.encoders.pilot import Settings
from studies.encoders.plans import AGREEMENT, TITLES, Run
from studies.encoders.tasks import TRANSFER_TASKS
from studies.figure_style import series_colour
from studies.tables import cells_of_circumstances, hours, percent, rows_of_table, section

Results = Mapping[Run, Mapping[str, Any]]

_LENGTH_BINS = 4
_COMPARISONS = (("stack_ssm", "bigs"), ("stack_attention", "stack_ssm"), ("gated_attention", "bigs"))


def seeds_of(results: Results) -> dict[str, list[int]]:
    """Return the seeds of each model that has results, in the order of the cells."""
    return {
        model: sorted(run.seed for run in results if run.model == model)
        for model in TITLES
        if any(run.model == model for run in results)
    }


def scores_of(results: Results, model: str, seeds: Sequence[int], task: str) -> Scored:
    """Return the accuracy of a model on a task for each seed and question."""
    found = [_measure(results, model, seed, task) for seed in seeds]
    return gather(found, "accuracy")


def _measure(results: Results, model: str, seed: int, task: str) -> Mapping[str, Any]:
    result = next(result for run, result in results.items() if (run.model, run.seed) == (model, seed))
    if task == AGREEMENT:
        return result["pretrained"][AGREEMENT]
    return result["fine_tuned"][task]["test"]


def all_tables(results: Results, pilots: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return every table of a scale.

    Args:
        results: the available results.
        pilots: the settings that each finished pilot tried, by model.
    """
    parts = [section("Pilot", _table_of_pilots(pilots))] if pilots else []
    if results:
        parts += [
            section("Runs", _table_of_runs(results)),
            section("Accuracy after fine-tuning, and agreement before it", _table_of_means(results)),
            section("Differences", _table_of_differences(results)),
            section("By kind of change and by attractors", _table_of_groups(results)),
        ]
    return parts


def _table_of_pilots(pilots: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    losses = {
        model: {tuple(one[name] for name in Settings._fields): one["held_out_loss"] for one in tried}
        for model, tried in pilots.items()
    }
    columns = sorted({settings for found in losses.values() for settings in found})
    rows = []
    for model, found in losses.items():
        best = min(found, key=found.__getitem__)
        texts = {settings: f"{loss:.3f}" for settings, loss in found.items()}
        texts[best] = f"**{texts[best]}**"
        rows.append([TITLES[model], *(texts.get(settings, "-") for settings in columns)])
    head = [", ".join(f"{value:g}" for value in settings) for settings in columns]
    return rows_of_table(["held-out loss by rate and initial deviations", *head], rows)


def validation_loss(result: Mapping[str, Any]) -> float:
    """Return the last validation loss of masked LM, in nats per hidden token."""
    (curve,) = result["pretraining"]["curves"].values()
    return curve[-1][1]


def _table_of_runs(results: Results) -> str:
    rows = []
    for run, result in results.items():
        seconds = result["circumstances"]["seconds"]
        tuning = sum(value for name, value in seconds.items() if name.endswith("_tuning"))
        rows.append(
            [
                TITLES[run.model],
                str(run.seed),
                f"{result['pretraining']['summary']['parameters']:,}",
                f"{validation_loss(result):.3f}",
                hours(seconds["pretraining"]),
                hours(tuning),
                *cells_of_circumstances(result),
            ]
        )
    head = ["cell", "seed", "parameters", "held-out loss, nats a hidden token", "hours: pre-training"]
    return rows_of_table([*head, "fine-tuning", "cores", "commit", "date"], rows)


def _tasks(results: Results) -> list[str]:
    """Return the tasks that have results, in the order of `TRANSFER_TASKS`."""
    found = next(iter(results.values()))["fine_tuned"]
    return [task for task in TRANSFER_TASKS if task in found]


def _table_of_means(results: Results) -> str:
    seeds = seeds_of(results)
    rows = []
    for task in (*_tasks(results), AGREEMENT):
        cells = []
        for model, of_model in seeds.items():
            scored = scores_of(results, model, of_model, task)
            means = scored.scores @ scored.weights / scored.weights.sum()
            spread = f", spread {100 * means.std(ddof=1):.1f}" if len(of_model) > 1 else ""
            cells.append(percent(mean_with_interval(scored)) + spread)
        rows.append([task, *cells])
    head = ["per cent right", *(f"{TITLES[model]} ({_seeds(len(of))})" for model, of in seeds.items())]
    return rows_of_table(head, rows)


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count > 1 else ''}"


def _table_of_differences(results: Results) -> str:
    seeds = seeds_of(results)
    pairs = [
        (first, second, sorted(set(seeds.get(first, [])) & set(seeds.get(second, []))))
        for first, second in _COMPARISONS
    ]
    pairs = [pair for pair in pairs if pair[2]]
    if not pairs:
        return "No two cells have a seed in common yet."
    rows = []
    for task in (*_tasks(results), AGREEMENT):
        cells = []
        for first, second, common in pairs:
            one, other = (scores_of(results, model, common, task) for model in (first, second))
            cells.append(percent(paired_difference(one, other)))
        rows.append([task, *cells])
    head = [
        f"{TITLES[second]} minus {TITLES[first]} ({_seeds(len(common))})" for first, second, common in pairs
    ]
    return rows_of_table(["points; 95 % over seeds, of one over questions", *head], rows)


def _grouped(results: Results, model: str, task: str, group: str) -> dict[int, Scored]:
    seeds = seeds_of(results)[model]
    values = _measure(results, model, seeds[0], task)["groups"][group]
    return by_group(scores_of(results, model, seeds, task), values)


def _table_of_groups(results: Results) -> str:
    rows = []
    for model in seeds_of(results):
        order, number = (_grouped(results, model, "acceptable", "kind").get(kind) for kind in (0, 1))
        attractors = _grouped(results, model, AGREEMENT, "attractors")
        found = (order, number, attractors.get(0), attractors.get(1))
        rows.append(
            [TITLES[model], *("-" if one is None else percent(mean_with_interval(one)) for one in found)]
        )
    head = ["cell", "word order", "number", "agreement, no attractor", "agreement, one attractor"]
    return rows_of_table(head, rows)


def figures_of(results: Results) -> Iterator[tuple[str, Figure]]:
    """Yield transfer against loss (Figure 5), accuracy by length (6), and kernels (3 and 4)."""
    for name, draw in (("transfer", _transfer), ("lengths", _lengths)):
        figure = Figure(figsize=(11.0, 6.0), layout="constrained")
        draw(results, figure)
        yield name, figure
    yield from kernel_figures(results)


def _colours() -> dict[str, str]:
    return {model: series_colour(number) for number, model in enumerate(TITLES)}


def _transfer(results: Results, figure: Figure) -> None:
    panels = figure.subplots(2, 3)
    for axes, task in zip(panels.flat, _tasks(results), strict=False):
        for model, colour in _colours().items():
            runs = [(run, result) for run, result in results.items() if run.model == model]
            if runs:
                losses = [validation_loss(result) for _, result in runs]
                means = [_mean(scores_of(results, model, [run.seed], task)) for run, _ in runs]
                axes.plot(losses, means, "o", color=colour, label=TITLES[model])
        axes.set_title(task.replace("_", " "), fontsize="small")
        axes.set_xlabel("held-out loss of masked LM", fontsize="small")
        axes.set_ylabel("right", fontsize="small")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small")


def _lengths(results: Results, figure: Figure) -> None:
    panels = figure.subplots(2, 3)
    for axes, task in zip(panels.flat, _tasks(results), strict=False):
        for model, colour in _colours().items():
            if model in seeds_of(results):
                places, means = _by_length(results, model, task)
                axes.plot(places, means, marker="o", color=colour, label=TITLES[model])
        axes.set_title(task.replace("_", " "), fontsize="small")
        axes.set_xlabel("positions of the sample", fontsize="small")
        axes.set_ylabel("right", fontsize="small")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small")


def _mean(scored: Scored) -> float:
    return float((scored.scores @ scored.weights).mean() / scored.weights.sum())


def _by_length(results: Results, model: str, task: str) -> tuple[list[float], list[float]]:
    """Return the mean length and the accuracy of each quarter of the samples, sorted by length."""
    seeds = seeds_of(results)[model]
    lengths = np.array(_measure(results, model, seeds[0], task)["groups"][LENGTH_GROUP], np.float64)
    right: Float[np.ndarray, " samples"] = scores_of(results, model, seeds, task).scores.mean(axis=0)
    by_bin: dict[int, list[tuple[float, float]]] = defaultdict(list)
    edges = np.unique(np.quantile(lengths, np.arange(1, _LENGTH_BINS) / _LENGTH_BINS))
    for length, score in zip(lengths.tolist(), right.tolist(), strict=True):
        by_bin[int(np.searchsorted(edges, length, side="left"))].append((length, score))
    means = [np.mean(by_bin[number], axis=0).tolist() for number in sorted(by_bin)]
    return [place for place, _ in means], [score for _, score in means]
