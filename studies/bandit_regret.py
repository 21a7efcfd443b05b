"""Regret of every reward and policy of the bandit on problems with known best mixtures.

    python -m studies.bandit_regret --scale=full --results=results/regret

The problems are in `studies/bandit_problems.py`. Regret is the excess of a policy's final losses over those
of the best schedule, both without noise, in nats, as the mean over arms. A run is one contender on all
problems; the run `oracle` finds the best schedules and constant mixtures. `fixed` holds 0.3 of one arm.
`full` has 32 decisions of the first seven problems, and takes some minutes of a core. `long` has 128
decisions of all problems, like a run that decides often, for policies that follow gains. `smoke` has one
seed.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from birdie_jax.bandit import find_policy, init_bandit, observe, propose
from birdie_jax.comparison.seed_interval import seed_interval
from birdie_jax.config import BanditConfig
from studies.bandit_problems import (
    ARMS,
    DECISIONS,
    PROBLEMS,
    Instance,
    descend,
    gains_of,
    instance_of,
    learned,
    loss_of,
    nothing_learned,
)
from studies.runner import Outcome, Study, main
from studies.tables import rows_of_table
from studies.verbs import Clock

# Of recorded losses and rewards; noise is 0.01.
_DECIMALS = 4
OWN_WEIGHTS = np.array([0.3] + [0.1] * (ARMS - 1))
STAGES = "0: 0=8, 1=1, 2=1, 3=1, 4=1, 5=1, 6=1, 7=1; 0.5: 0=1, 1=1, 2=1, 3=1, 4=1, 5=1, 6=1, 7=1"


FIRST_PROBLEMS = tuple(PROBLEMS)[:7]
CONTENDERS = {
    "fixed": {"policy": "fixed"},
    "uniform": {"policy": "uniform"},
    "staged": {"policy": "staged", "stages": STAGES},
    **{
        f"{policy}, {reward}": {"policy": policy, "reward": reward}
        for policy in ("exp3s", "thompson", "birdie")
        for reward in ("absolute_progress", "learning_progress", "published", "running_scale")
    },
}
FIRST_CONTENDERS = tuple(CONTENDERS)
CONTENDERS |= {
    **{
        policy: {"policy": policy}
        for policy in ("pairs", "attribution", "cross_effects", "gradients", "learning_curves", "progress")
    },
    "birdie, standardised": {"policy": "birdie", "reward": "standardised", "critic_error": "classes"},
}
LONG_CONTENDERS = (
    *("fixed", "uniform", "thompson, learning_progress", "birdie, published"),
    *(name for name in CONTENDERS if name not in FIRST_CONTENDERS),
)


def run_policy(config: BanditConfig, instance: Instance, seed: int) -> dict[str, Any]:
    """Run a policy on a problem.

    Returns:
        `final`: the mean of the final losses without noise. `losses`: the measured losses of the arms at
        each decision and at the end. `earned_reward`: the reward of each decision, summed over arms;
        `predicted_reward`: its prediction, if the policy makes one.
    """
    decisions = len(instance.rates)
    state = init_bandit(config, OWN_WEIGHTS, np.arange(ARMS), decisions, jax.random.key(seed))
    predict = find_policy(config.policy).predict
    found = nothing_learned()
    measured, predicted = [], []
    for decision in range(decisions + 1):
        losses = np.maximum(loss_of(instance, found) + instance.noise[decision], 1e-3)
        measured.append(np.round(losses, _DECIMALS).tolist())
        accuracies = np.clip(1 - (losses - instance.floor) / instance.height, 0, 1)
        at = min(decision, decisions - 1)
        gains = gains_of(instance, found, instance.rates[at], instance.transfer[at])
        state = observe(state, *(np.float32(each) for each in (losses, accuracies, gains)))
        if decision == decisions:
            break
        state = propose(state)
        if predict:
            predicted.append(round(float(predict(state)), _DECIMALS))
        found = learned(instance, found, decision, np.asarray(state.mixture, np.float64))
    earned = np.sum(np.asarray(state.rewards)[:decisions] * np.asarray(state.class_scale), axis=1)
    record = {
        "final": float(loss_of(instance, found).mean()),
        "losses": measured,
        "earned_reward": np.round(earned, _DECIMALS).tolist(),
    }
    return record | ({"predicted_reward": predicted} if predict else {})


def bandit_config(settings: Mapping[str, str]) -> BanditConfig:
    """Return the bandit config of a contender, with a small critic."""
    return BanditConfig(
        critic_layers=2,
        critic_features=32,
        critic_state=32,
        critic_updates=50,
        critic_learning_rate=2e-3,
        candidates=256,
        **settings,
    )


ORACLE, CONSTANT = "oracle", "best constant mixture"


@dataclass(frozen=True)
class Scale:
    """The size of the study.

    Attributes:
        name: the name.
        seeds: the number of seeds of every problem.
        decisions: the number of decisions of a run.
        problems: the names of the problems.
        contenders: the names of the contenders.
    """

    name: str
    seeds: int
    decisions: int = DECISIONS
    problems: tuple[str, ...] = FIRST_PROBLEMS
    contenders: tuple[str, ...] = FIRST_CONTENDERS


SCALES: Mapping[str, Scale] = MappingProxyType(
    {
        "smoke": Scale("smoke", 1, problems=tuple(PROBLEMS), contenders=tuple(CONTENDERS)),
        "full": Scale("full", 4),
        "long": Scale("long", 4, 128, tuple(PROBLEMS), LONG_CONTENDERS),
    }
)


class Run(NamedTuple):
    """A contender on all problems, or the oracle.

    Attributes:
        scale: the name of the scale.
        contender: the name of the contender.
    """

    scale: str
    contender: str

    @property
    def name(self) -> str:
        """The name of the run within its scale, as --only matches it."""
        return self.contender.replace(", ", "-")


Results = Mapping[Run, Mapping[str, Any]]
# By contender and problem: the regret with each seed.
Regrets = Mapping[str, Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class BanditRegret(Study[Scale, Run]):
    """Measures the regret of every policy. It reads no text and trains no model."""

    name = "bandit_regret"
    page = "bandit.md"
    scales = SCALES
    make_run = Run
    has_text = False

    def runs(self) -> Iterator[Run]:
        """Return the runs: the oracle, then the contenders."""
        return (Run(self.scale.name, contender) for contender in (ORACLE, *self.scale.contenders))

    def measure(self, run: Run, clock: Clock, log: Path) -> Outcome:
        """Run a contender on all problems, or find the best schedules."""
        del log
        instances = {
            problem: [instance_of(problem, seed, self.scale.decisions) for seed in range(self.scale.seeds)]
            for problem in self.scale.problems
        }
        with clock.stage("measuring"):
            if run.contender == ORACLE:
                best = {problem: [find_oracle(each) for each in of] for problem, of in instances.items()}
                schedules, constants = (
                    {problem: [pair[kind] for pair in pairs] for problem, pairs in best.items()}
                    for kind in range(2)
                )
                return Outcome({"schedule": schedules, "constant": constants}, [self.folder(run)])
            config = bandit_config(CONTENDERS[run.contender])
            records = {
                problem: [run_policy(config, each, seed) for seed, each in enumerate(of)]
                for problem, of in instances.items()
            }
        losses = {problem: [each.pop("final") for each in of] for problem, of in records.items()}
        return Outcome(
            {"config": dataclasses.asdict(config), "losses": losses, "decisions": records},
            [self.folder(run)],
        )

    def tables(self, results: Results) -> list[str]:
        """Return the regret of every contender on every problem."""
        table = regrets(results)
        if "uniform" not in table:
            return []
        rows = []
        for contender, row in table.items():
            cells = []
            for problem in row:
                # The oracle can be ahead by a rounding error: no -0.000.
                mean = np.round(row[problem].mean(), 3) + 0.0
                difference = row[problem] - table["uniform"][problem]
                if difference.size < 2 or contender == "uniform":
                    cells.append(f"{mean:.3f}")
                    continue
                interval = seed_interval(difference)
                cells.append(f"{mean:.3f} ± {interval.high - interval.mean:.3f}")
            rows.append([contender, *cells, f"{shares_of(table, contender).mean():.0%}"])
        return [rows_of_table(["policy, reward", *table["uniform"], "mean of uniform's"], rows)]

    def figures(self, results: Results) -> Iterator[tuple[str, Figure]]:
        """Yield a heat map of regrets as shares of uniform's."""
        table = regrets(results)
        if "uniform" in table:
            yield "regret", draw(table)


def find_oracle(instance: Instance) -> tuple[float, float]:
    """Return the best final loss over all schedules, and over constant mixtures."""
    instance = jax.tree.map(jnp.float32, instance)
    return float(descend(instance, is_constant=False)), float(descend(instance, is_constant=True))


def regrets(results: Results) -> Regrets:
    """Return the final regret of every contender with a result; empty without the oracle's result."""
    found = {run.contender: result for run, result in results.items()}
    if ORACLE not in found:
        return {}
    best = {problem: np.array(losses) for problem, losses in found[ORACLE]["schedule"].items()}
    losses = {CONSTANT: found[ORACLE]["constant"]}
    losses |= {name: found[name]["losses"] for name in CONTENDERS if name in found}
    return {
        contender: {problem: np.array(row[problem]) - best[problem] for problem in best}
        for contender, row in losses.items()
    }


def shares_of(table: Regrets, contender: str) -> np.ndarray:
    """Return the regret of a contender on each problem as a share of uniform's."""
    uniform = table["uniform"]
    return np.array([row.mean() / uniform[problem].mean() for problem, row in table[contender].items()])


def draw(table: Regrets) -> Figure:
    """Return a heat map of regrets as shares of uniform's, with one row per contender."""
    figure = Figure(figsize=(9, 0.36 * len(table) + 1.5), layout="constrained")
    axes = figure.subplots()
    shares = np.array([shares_of(table, contender) for contender in table])
    octaves = np.log2(np.maximum(shares, 1e-3))
    axes.imshow(octaves, cmap="RdBu_r", vmin=-1.5, vmax=1.5, aspect="auto")
    for (line, column), share in np.ndenumerate(shares):
        # Both ends of the colour map are dark.
        color = "white" if abs(octaves[line, column]) > 1 else "black"
        axes.text(column, line, f"{share:.0%}", ha="center", va="center", fontsize=8, color=color)
    axes.set_xticks(range(shares.shape[1]), list(table["uniform"]), rotation=20)
    axes.set_yticks(range(len(table)), list(table))
    axes.set_title("Final regret, in shares of uniform's")
    return figure


if __name__ == "__main__":
    main(BanditRegret, __doc__)
