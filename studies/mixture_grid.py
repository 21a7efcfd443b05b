"""The best fixed mixture: a grid of shares, by the objective of the bandit.

    python -m studies.mixture_grid --scale=small --results=results/mixture_grid --text='/data/*.jsonl'

The setting is that of `studies.small_mixtures`. A mixture gives short copying, longer copying and language
shares of the target tokens, in sixths: 28 mixtures with seed 0. A second start of the same command runs the
best four with four fresh seeds, which decide the best. J is the mean over the classes of the mixture
`small_models` of the final validation loss, in nats; lower is better. A run takes about six minutes of one
core. --text: any value of config.data.source.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from studies.class_objective import GROUPS, mean_of_classes, stage_of
from studies.one_training import OneTraining
from studies.runner import main
from studies.small_mixtures import SCALES, SETTINGS, Scale, of_length
from studies.tables import mean_over_seeds, rows_of_table, section

PARTS = 6
GRID = tuple(
    (short, longer, PARTS - short - longer)
    for short in range(PARTS + 1)
    for longer in range(PARTS + 1 - short)
)
BEST = 4
FIRST_SEED, FRESH_SEEDS = 0, (1, 2, 3, 4)


class Run(NamedTuple):
    """A training on one mixture.

    Attributes:
        scale: the name of the scale.
        short: the sixths of short copying.
        longer: the sixths of longer copying.
        language: the sixths of language.
        seed: the seed of parameters and text.
    """

    scale: str
    short: int
    longer: int
    language: int
    seed: int

    @property
    def name(self) -> str:
        """The name of the run within its scale, as --only matches it."""
        return f"{self.short}-{self.longer}-{self.language}.{self.seed}"

    @property
    def mixture(self) -> tuple[int, int, int]:
        """The sixths of the three groups."""
        return self.short, self.longer, self.language


Results = Mapping[Run, Mapping[str, Any]]


def objective(result: Mapping[str, Any], decision: int = -1) -> float:
    """Return J in nats: the validation loss, averaged over the arms of each class, then over classes."""
    return mean_of_classes(dict(zip(result["arms"], result["validation_loss"][decision], strict=True)))


def quarter_objective(result: Mapping[str, Any]) -> float:
    """Return J at the first decision after a quarter of the run."""
    steps = np.array(result["steps"])
    return objective(result, int(np.argmax(4 * steps >= steps[-1])))


def best_mixtures(results: Results) -> list[tuple[int, int, int]]:
    """Return the best mixtures with the first seed, the best first; empty until the grid is complete."""
    first = {run.mixture: objective(result) for run, result in results.items() if run.seed == FIRST_SEED}
    return sorted(first, key=lambda mixture: first[mixture])[:BEST] if len(first) == len(GRID) else []


def best_fixed(results: Results) -> tuple[int, int, int] | None:
    """Return the mixture with the best mean over the fresh seeds; None until all of them have results."""
    found = {
        mixture: [objective(result) for run, result in results.items() if _is_fresh(run, mixture)]
        for mixture in best_mixtures(results)
    }
    if not found or any(len(values) < len(FRESH_SEEDS) for values in found.values()):
        return None
    return min(found, key=lambda mixture: float(np.mean(found[mixture])))


def _is_fresh(run: Run, mixture: tuple[int, int, int]) -> bool:
    return run.mixture == mixture and run.seed in FRESH_SEEDS


@dataclass(frozen=True)
class MixtureGrid(OneTraining[Scale, Run]):
    """Finds the best fixed mixture."""

    name = "mixture_grid"
    page = "steering.md"
    scales = SCALES
    make_run = Run

    def runs(self) -> Iterator[Run]:
        """Yield the grid with the first seed; once it is complete, also the best with fresh seeds."""
        for mixture in GRID:
            yield Run(self.scale.name, *mixture, FIRST_SEED)
        best = best_mixtures(self.read_results())
        for seed in FRESH_SEEDS:
            for mixture in best:
                yield Run(self.scale.name, *mixture, seed)

    def settings(self, run: Run) -> dict[str, Any]:
        """Return the settings of `small_mixtures` with the run's shares, for the scale's run length."""
        of_run = {
            "seed": run.seed,
            "bandit.stages": stage_of(run.mixture),
            "objectives.shares_of": "target_tokens",
        }
        return of_length(SETTINGS | of_run, self.scale)

    def tables(self, results: Results) -> list[str]:
        """Return J of each mixture at the end and at a quarter of the run, and J of the best by seed."""
        grid = sorted(
            (objective(result), quarter_objective(result), run.mixture)
            for run, result in results.items()
            if run.seed == FIRST_SEED
        )
        rows = [
            [*(f"{sixths}/6" for sixths in mixture), f"{end:.3f}", f"{early:.3f}"]
            for end, early, mixture in grid
        ]
        head = [*GROUPS, "J", "J at a quarter of the run"]
        sections = [section("The grid, seed 0", rows_of_table(head, rows))]
        fresh = [run.seed for run in results if run.seed != FIRST_SEED]
        if fresh:
            rows = []
            for mixture in best_mixtures(results):
                found = {run.seed: objective(results[run]) for run in results if run.mixture == mixture}
                values = [found[seed] for seed in FRESH_SEEDS if seed in found]
                by_seed = ", ".join(f"{value:.3f}" for value in values)
                cells = [f"{sixths}/6" for sixths in mixture]
                rows.append([*cells, mean_over_seeds(values, ".3f") if values else "", by_seed])
            head = [*GROUPS, "J, mean over fresh seeds (95 %)", "by seed"]
            sections.append(section("The best four, fresh seeds", rows_of_table(head, rows)))
        return sections

    def figures(self, results: Results) -> Iterator[tuple[str, Figure]]:
        """Yield a figure of J by shares, with seed 0."""
        figure = Figure(figsize=(6.5, 4.5), layout="constrained")
        axes = figure.subplots()
        first = {run: objective(result) for run, result in results.items() if run.seed == FIRST_SEED}
        places = np.array([[run.language, run.short] for run in first]) / PARTS
        points = axes.scatter(*places.T, c=list(first.values()), s=500, cmap="viridis_r")
        for (x, y), value in zip(places, first.values(), strict=True):
            # Small values are light.
            color = "white" if value > np.median(list(first.values())) + 1 else "black"
            axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=7, color=color)
        axes.set_xlabel("share of language in the target tokens")
        axes.set_ylabel("share of short copying; the rest is longer copying")
        axes.set_xlim(-0.1, 1.1)
        axes.set_ylim(-0.1, 1.1)
        figure.colorbar(points, label="J, nats (lower is better)")
        yield "grid", figure


if __name__ == "__main__":
    main(MixtureGrid, __doc__)
