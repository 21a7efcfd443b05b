"""When reading direction matters: answers by the place of the question, the channels and their direction.

A causal model of c channels (Cc) has c channels that read forwards. A model that reads in both directions
(Bc) has half as many. If the question follows the book, only channels that read forwards can carry the
entries to the answer. If it precedes the book, a model can carry one entry.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.figure import Figure

from studies.figure_style import series_colour, series_marker
from studies.retrieval.conditions import Results
from studies.retrieval.curriculum import EXACT
from studies.retrieval.fine_tuning import PHONEBOOK
from studies.retrieval.plans import PROCEDURES, Run
from studies.retrieval.tables import table_of_runs
from studies.tables import mean_over_seeds, rows_of_table, section

_DECIDING_CELLS = ("entries_8", "entries_16")
AFTER, BEFORE = "after", "before"
_DIFFERENCES = (("B128", "C64"), ("B128", "C128"), ("B64", "C64"), ("C128", "C64"))
_SIZE = (7.0, 4.0)

Answers = Mapping[str, Mapping[str, float]]
"""By the place of the question and the cell: the per cent of test answers that are exactly right."""


def arm_name(run: Run) -> str:
    """Return B or C and the channels of a layer: B64 reads in both directions with 64 channels."""
    direction = "B" if PROCEDURES[run.procedure].bidirectional else "C"
    return direction + run.model.removeprefix("state_")


def answers_by_arm(results: Results) -> dict[str, dict[int, Answers]]:
    """Return the answers of every condition and seed."""
    found: dict[str, dict[int, Answers]] = {}
    for run, result in sorted(results.items(), key=lambda one: (arm_name(one[0]), one[0].seed)):
        found.setdefault(arm_name(run), {})[run.seed] = {
            repeat["question"]: {
                cell: 100 * float(np.average(task["scores"][EXACT], weights=task["weights"]))
                for cell, task in repeat["test"].items()
            }
            for repeat in result["fine_tuned"][PHONEBOOK]["repeats"]
        }
    return found


def deciding_score(answers: Answers, place: str) -> float:
    """Return the mean per cent over books of 8 and 16 entries."""
    return float(np.mean([answers[place][cell] for cell in _DECIDING_CELLS]))


def differences(
    found: Mapping[str, Mapping[int, Answers]], first: str, second: str, place: str
) -> list[float]:
    """Return the points that the first condition is above the second, by the seeds of both."""
    seeds = sorted(set(found.get(first, ())) & set(found.get(second, ())))
    return [
        deciding_score(found[first][seed], place) - deciding_score(found[second][seed], place)
        for seed in seeds
    ]


def direction_tables(results: Results) -> list[str]:
    """Return every table of the scale."""
    if not results:
        return []
    found = answers_by_arm(results)
    sections = {
        "Runs": table_of_runs(results),
        "Answers exactly right, %": _table_of_answers(found),
        "Differences in points, books of 8 and 16 entries, 95 % t-intervals over seeds": (
            _table_of_differences(found)
        ),
    }
    return [section(title, table) for title, table in sections.items()]


def _places(found: Mapping[str, Mapping[int, Answers]]) -> list[str]:
    return list(next(iter(next(iter(found.values())).values())))


def _table_of_answers(found: Mapping[str, Mapping[int, Answers]]) -> str:
    places = _places(found)
    cells = list(next(iter(next(iter(found.values())).values()))[places[0]])
    rows = [
        [
            *(condition, str(seed)),
            *(f"{deciding_score(answers, place):.0f}" for place in places),
            *(f"{answers[place][cell]:.0f}" for place in places for cell in cells),
        ]
        for condition, by_seed in found.items()
        for seed, answers in by_seed.items()
    ]
    head = [f"measure: question {place}" for place in places]
    head += [f"question {place}, {cell.replace('_', ' ')}" for place in places for cell in cells]
    return rows_of_table(["condition", "seed", *head], rows)


def _table_of_differences(found: Mapping[str, Mapping[int, Answers]]) -> str:
    places = _places(found)
    rows = []
    for first, second in _DIFFERENCES:
        by_place = {place: differences(found, first, second, place) for place in places}
        if not by_place[places[0]]:
            continue
        interaction = [a - b for a, b in zip(by_place[AFTER], by_place[BEFORE], strict=True)]
        rows.append(
            [
                f"{first} less {second}",
                str(len(interaction)),
                *(mean_over_seeds(values, "+z.0f") for values in by_place.values()),
                mean_over_seeds(interaction, "+z.0f"),
            ]
        )
    if not rows:
        return "No two conditions have a seed in common yet."
    head = ["conditions", "seeds", *(f"question {place}" for place in places)]
    return rows_of_table([*head, "interaction: after less before"], rows)


def direction_figures(results: Results) -> Iterator[tuple[str, Figure]]:
    """Give the figure: by the place of the question, a line per condition, a dot per run."""
    if not results:
        return
    found = answers_by_arm(results)
    places = _places(found)
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    for number, (condition, by_seed) in enumerate(found.items()):
        scores = np.array(
            [[deciding_score(answers, place) for place in places] for answers in by_seed.values()]
        )
        style = {"color": series_colour(number), "marker": series_marker(number)}
        axes.plot(places, scores.mean(axis=0), label=condition, **style)
        for of_run in scores:
            axes.plot(places, of_run, linestyle="none", alpha=0.4, **style)
    axes.set_xlabel("place of the question")
    axes.set_ylabel("answers exactly right, 8 and 16 entries (%)")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=4, fontsize="x-small")
    yield "places", figure
