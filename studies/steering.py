"""Does steering pay? Compares every steering policy with the best fixed mixture, on the bandit's objective.

    python -m studies.steering --scale=small --results=results/steering --text='/data/*.jsonl'

The setting, the objective J and the best fixed mixture are those of `studies.mixture_grid`; the repository
holds its results. Contenders start from equal shares of the nine classes of `small_models`, in target
tokens, and decide every 16 steps, 125 times. Seeds 5 to 8 are fresh. After the contenders, the same command
runs two controls of the best steering policy: its mean shares held fixed (yoked), and its shares in a
random order of twelfths of the run (permuted). A run takes 8 to 40 minutes of one core, by contender.
--text: any value of config.data.source.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import scipy.stats
from matplotlib.figure import Figure

from birdie_jax.mixture_search.design import stages_text
from studies.class_objective import GROUPS, class_of_arm, losses_of_classes, stage_of
from studies.figure_style import series_colour
from studies.mixture_grid import MixtureGrid, best_fixed, objective, quarter_objective
from studies.one_training import OneTraining
from studies.progress import seconds_of
from studies.runner import main
from studies.small_mixtures import SCALES, SETTINGS, Scale, of_length
from studies.steering_policies import STEERING
from studies.tables import (
    HEAD_OF_PREDICTIONS,
    cells_of_predictions,
    mean_over_seeds,
    rows_of_table,
    section,
)

EVERY_STEPS = 16
SEEDS = (5, 6, 7, 8)
BLOCKS = 12
GRID_RESULTS = Path(__file__).parents[1] / "docs" / "measurements" / "mixture_grid"
BEST, UNIFORM, TWO_BATCHES = "best_fixed", "uniform", "uniform_two_batches"
UNSTEERED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        UNIFORM: {"bandit.policy": "fixed"},
        TWO_BATCHES: {"bandit.policy": "fixed", "eval.batches_per_arm": 2},
        BEST: {"bandit.policy": "staged"},
    }
)
YOKED, PERMUTED = "yoked", "permuted"


class Run(NamedTuple):
    """The pre-training of a contender with a seed.

    Attributes:
        scale: the name of the scale.
        contender: the name of the contender.
        seed: the seed of parameters and text.
    """

    scale: str
    contender: str
    seed: int

    @property
    def name(self) -> str:
        """The name of the run within its scale, as --only matches it."""
        return f"{self.contender}.{self.seed}"


Results = Mapping[Run, Mapping[str, Any]]


def class_shares(result: Mapping[str, Any]) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names of the classes, and their shares at every decision, [decisions, classes]."""
    names = tuple(dict.fromkeys(class_of_arm().values()))
    of_arms = np.array([names.index(class_of_arm()[arm]) for arm in result["arms"]])
    return names, np.array(result["probability"]) @ np.eye(len(names))[of_arms]


def control_stages(control: str, result: Mapping[str, Any], seed: int) -> str:
    """Return the schedule of a control for the run with this result."""
    names, shares = class_shares(result)
    if control == YOKED:
        return stages_text(names, shares.mean(axis=0, keepdims=True))
    blocks = np.stack([part.mean(axis=0) for part in np.array_split(shares, BLOCKS)])
    return stages_text(names, np.random.default_rng(seed).permutation(blocks))


def objectives(results: Results) -> dict[str, dict[int, float]]:
    """Return the final J by contender and seed, in the order of the contenders.

    The published policy validates two batches. Its J is corrected by the mean effect of the second batch on
    the J of uniform.
    """
    found: dict[str, dict[int, float]] = {}
    for contender in (BEST, UNIFORM, TWO_BATCHES, *STEERING, YOKED, PERMUTED):
        by_seed = {
            run.seed: objective(result) for run, result in results.items() if run.contender == contender
        }
        if by_seed:
            found[contender] = dict(sorted(by_seed.items()))
    two, one = found.get(TWO_BATCHES, {}), found.get(UNIFORM, {})
    if "published" in found and (seeds := two.keys() & one.keys()):
        offset = np.mean([two[seed] - one[seed] for seed in seeds])
        found["published"] = {seed: value - offset for seed, value in found["published"].items()}
    return found


def best_steering(results: Results) -> str | None:
    """Return the steering policy with the lowest mean J; None until all of them have results."""
    found = objectives(results)
    if any(len(found.get(contender, ())) < len(SEEDS) for contender in STEERING):
        return None
    return min(STEERING, key=lambda name: np.mean(list(found[name].values())))


@dataclass(frozen=True)
class Steering(OneTraining[Scale, Run]):
    """Compares steering policies with the best fixed mixture."""

    name = "steering"
    page = "steering.md"
    scales = SCALES
    make_run = Run

    def best_stage(self) -> str | None:
        """Return the schedule of the best fixed mixture; None until the grid is complete."""
        grid = MixtureGrid(self.scale, GRID_RESULTS, self.workdirs, self.text)
        best = best_fixed(grid.read_results())
        return None if best is None else stage_of(best)

    def runs(self) -> Iterator[Run]:
        """Yield the contenders by seed; once all steering policies are done, also the best's controls."""
        unsteered = [name for name in UNSTEERED if name != BEST or self.best_stage() is not None]
        for seed in SEEDS:
            for contender in (*unsteered, *STEERING):
                yield Run(self.scale.name, contender, seed)
        if best_steering(self.read_results()):
            for seed in SEEDS:
                for control in (YOKED, PERMUTED):
                    yield Run(self.scale.name, control, seed)

    def settings(self, run: Run) -> dict[str, Any]:
        """Return the settings of `mixture_grid` with the policy of a run, for the scale's run length."""
        of_run = {
            "seed": run.seed,
            "objectives.shares_of": "target_tokens",
            "objectives.mixture": "small_models_even",
            "bandit.every_steps": EVERY_STEPS,
        }
        if run.contender in (YOKED, PERMUTED):
            results = self.read_results()
            followed = results[Run(self.scale.name, str(best_steering(results)), run.seed)]
            of_run["bandit.stages"] = control_stages(run.contender, followed, run.seed)
            of_run["bandit.policy"] = "staged"
        else:
            of_run |= (UNSTEERED | STEERING)[run.contender]
        if run.contender == BEST:
            of_run["bandit.stages"] = self.best_stage()
        return of_length(SETTINGS | of_run, self.scale)

    def tables(self, results: Results) -> list[str]:
        """Return J, the regret and the shares of every contender."""
        found = objectives(results)
        rows = []
        for contender, by_seed in found.items():
            values = list(by_seed.values())
            early = [
                quarter_objective(result) for run, result in results.items() if run.contender == contender
            ]
            minutes = [
                seconds_of(result) / 60 for run, result in results.items() if run.contender == contender
            ]
            rows.append(
                [
                    contender,
                    f"{np.mean(values):.3f}",
                    ", ".join(f"{value:.3f}" for value in values),
                    _difference(by_seed, found.get(BEST, {})),
                    _probability(by_seed, found.get(BEST, {})) if contender in STEERING else "",
                    _difference(by_seed, found.get(UNIFORM, {})),
                    f"{np.mean(early):.3f}",
                    f"{np.mean(minutes):.0f}",
                ]
            )
        regret = ["regret: J less best fixed (95 %)", f"its p, and times {len(STEERING)}"]
        head = ["contender", "J", "by seed", *regret, "J less uniform (95 %)"]
        sections = [
            section("J", rows_of_table([*head, "J at a quarter of the run", "minutes"], rows)),
        ]
        if YOKED in found:
            best = str(best_steering(results))
            rows = [
                [control, _difference(found[control], found[best])]
                for control in (YOKED, PERMUTED)
                if control in found
            ]
            head = ["control", f"J less {best} (95 %)"]
            sections.append(section("Controls of the best contender", rows_of_table(head, rows)))
        rows = []
        for contender in found:
            mean = [
                class_shares(result)[1] for run, result in results.items() if run.contender == contender
            ]
            halves = [np.mean([part.mean(axis=0) for part in each], axis=0) for each in _halves(mean)]
            names = class_shares(next(iter(results.values())))[0]
            cells = [
                " / ".join(
                    f"{100 * sum(half[names.index(name)] for name in classes):.0f}" for half in halves
                )
                for classes in GROUPS.values()
            ]
            rows.append([contender, *cells])
        head = ["contender", *(f"{group}, % in the first / second half" for group in GROUPS)]
        if rows:
            sections.append(section("Shares of target tokens", rows_of_table(head, rows)))
            sections.append(section("Final validation loss by class, nats", _table_of_classes(results)))
        if predictions := _table_of_predictions(results):
            sections.append(section("Rewards that critics predict and mixtures earn", predictions))
        return sections

    def figures(self, results: Results) -> Iterator[tuple[str, Figure]]:
        """Yield a figure of the groups' shares over the run, with one panel per steering policy."""
        contenders = [name for name in STEERING if any(run.contender == name for run in results)]
        if not contenders:
            return
        columns = min(4, len(contenders))
        lines = -(-len(contenders) // columns)
        figure = Figure(figsize=(3.2 * columns, 2.4 * lines), layout="constrained")
        axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for axis, contender in zip(axes, contenders, strict=False):
            for run, result in results.items():
                if run.contender != contender:
                    continue
                names, shares = class_shares(result)
                steps = np.array(result["steps"][: len(shares)])
                for number, (group, classes) in enumerate(GROUPS.items()):
                    values = sum(shares[:, names.index(name)] for name in classes)
                    label = group if run.seed == SEEDS[0] else None
                    axis.plot(steps, 100 * values, color=series_colour(number), linewidth=0.8, label=label)
            axis.set_title(contender, fontsize=9)
        for axis in axes[len(contenders) :]:
            axis.remove()
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=8)
        figure.supxlabel("step")
        figure.supylabel("share of target tokens (%)")
        yield "shares", figure


def mean_losses(results: Results, contender: str) -> dict[str, float]:
    """Return the mean over seeds of the last loss of every class."""
    of_seeds = [
        losses_of_classes(dict(zip(result["arms"], result["validation_loss"][-1], strict=True)))
        for run, result in results.items()
        if run.contender == contender
    ]
    return {name: float(np.mean([losses[name] for losses in of_seeds])) for name in of_seeds[0]}


def _halves(shares: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    split = [np.array_split(each, 2) for each in shares]
    return [first for first, _ in split], [second for _, second in split]


def _table_of_classes(results: Results) -> str:
    """Return the means over seeds of the last losses of every class."""
    rows = [
        [contender, *(f"{mean:.3f}" for mean in mean_losses(results, contender).values())]
        for contender in objectives(results)
    ]
    names = dict.fromkeys(class_of_arm().values())
    return rows_of_table(["contender", *(name.replace("_", " ") for name in names)], rows)


def _table_of_predictions(results: Results) -> str:
    """Return predicted and earned rewards of mixtures, of the contenders with a critic; "" without any."""
    rows = []
    for run, result in results.items():
        if result.get("predicted_reward") is not None:
            cells = cells_of_predictions(result["predicted_reward"], result["earned_reward"])
            rows.append([run.contender, str(run.seed), *cells])
    return rows_of_table(["contender", "seed", *HEAD_OF_PREDICTIONS], rows) if rows else ""


def _probability(values: Mapping[int, float], reference: Mapping[int, float]) -> str:
    """Return p of a paired t-test, and its product with the number of steering policies (Bonferroni)."""
    paired = differences(values, reference)
    if len(paired) < 2:
        return ""
    p = probability(paired)
    return f"{p:.2g}, {min(1.0, p * len(STEERING)):.2g}"


def probability(paired: Sequence[float]) -> float:
    """Return p of a t-test that the mean of paired differences is 0."""
    return float(scipy.stats.ttest_1samp(paired, 0).pvalue)


def differences(values: Mapping[int, float], reference: Mapping[int, float]) -> list[float]:
    """Return how far values are above those of the same seeds."""
    return [value - reference[seed] for seed, value in values.items() if seed in reference]


def _difference(values: Mapping[int, float], reference: Mapping[int, float]) -> str:
    paired = differences(values, reference)
    return mean_over_seeds(paired, "+.3f") if paired and values is not reference else ""


if __name__ == "__main__":
    main(Steering, __doc__)
