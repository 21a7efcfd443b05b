"""Regret of every reward and policy of the bandit on problems whose best mixtures are known.

    python -m studies.bandit_regret --scale=full --results=results/regret

Eight arms are learned at different rates, and saturate. With a the mixture of a decision, x_i what arm i
has learned and e the noise of a measurement,

    x <- (1 - forgetting) x + rates * (transfer a)        loss = floor + height * exp(-x) + e

The mean of the final losses is convex in the mixtures of all decisions, so the best schedule is found by
descending it, and so is the best mixture that never changes. Regret is what a policy's final losses are
above those of the best schedule, both without noise: nats, mean over arms. The problems:

- saturation: no transfer; rates differ by a factor of 50;
- one arm: every loss falls with the probability of one arm alone;
- transfer: one arm teaches all others, three of which learn nothing from themselves;
- abrupt change: as transfer; in the middle of the run another arm becomes the teacher, and rates change;
- gradual change: as saturation, but each rate swings by a factor of 10 over the run;
- forgetting: as transfer, and 5 % of what is learned is lost at each decision;
- noise: as transfer, with a noise of 0.05 nats instead of 0.01.

A run is one contender on all problems; the run `oracle` finds the best schedules and constant mixtures.
`fixed` holds 0.3 of one arm. `full` has four seeds and takes some minutes of a core; `smoke` has one.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from birdie_jax.bandit import REWARDS, init_bandit, observe, propose
from birdie_jax.config import BanditConfig
from studies.runner import Outcome, Study, main
from studies.tables import rows_of_table
from studies.verbs import Clock

ARMS, DECISIONS = 8, 32
OWN_WEIGHTS = np.array([0.3] + [0.1] * (ARMS - 1))
STAGES = "0: 0=8, 1=1, 2=1, 3=1, 4=1, 5=1, 6=1, 7=1; 0.5: 0=1, 1=1, 2=1, 3=1, 4=1, 5=1, 6=1, 7=1"


class Instance(NamedTuple):
    """One problem; arrays over decisions come first.

    Attributes:
        rates: [decisions, arms], what is learned at probability 1 in one decision.
        transfer: [decisions, arms, arms], how much arm i (row) learns from training on arm j.
        forgetting: the share of what is learned that is lost at a decision.
        height: [arms], what the loss falls by in the end.
        floor: [arms], where it ends.
        noise: [decisions + 1, arms], what is added to the measured losses.
    """

    rates: np.ndarray
    transfer: np.ndarray
    forgetting: float
    height: np.ndarray
    floor: np.ndarray
    noise: np.ndarray


def make_instance(
    rng: np.random.Generator,
    *,
    spread: float = 1.7,
    transfer: Callable[[np.random.Generator, np.ndarray], np.ndarray] | None = None,
    changes: bool = False,
    swings: bool = False,
    forgetting: float = 0.0,
    noise: float = 0.01,
) -> Instance:
    """Return a problem, of one or two phases with rates and transfer of their own."""

    def phase() -> tuple[np.ndarray, np.ndarray]:
        rates = 10 ** rng.permutation(np.linspace(-spread, 0, ARMS))
        return rates, np.eye(ARMS) if transfer is None else transfer(rng, rates)

    phases = [phase()]
    phases.append(phase() if changes else phases[0])
    halves = [DECISIONS // 2, DECISIONS - DECISIONS // 2]
    rates, between = (np.repeat(np.stack(both), halves, axis=0) for both in zip(*phases, strict=True))
    if swings:
        angle = np.pi * np.arange(DECISIONS)[:, None] / DECISIONS + rng.uniform(0, 2 * np.pi, ARMS)
        rates = rates * 10 ** (0.5 * np.sin(angle))
    return Instance(
        rates,
        between,
        forgetting,
        rng.uniform(1, 4, ARMS),
        rng.uniform(0.1, 2, ARMS),
        noise * rng.normal(size=(DECISIONS + 1, ARMS)),
    )


def one_teacher(rng: np.random.Generator, rates: np.ndarray) -> np.ndarray:
    """Return a matrix by which one arm teaches all, and three others do not even teach themselves."""
    matrix = np.eye(ARMS)
    order = rng.permutation(ARMS)
    matrix[order[1:4], order[1:4]] = 0
    # Whatever an arm's own rate, it learns from the teacher at a middling one.
    matrix[:, order[0]] = 0.3 / rates
    return matrix


def only_one_teaches(rng: np.random.Generator, rates: np.ndarray) -> np.ndarray:
    """Return a matrix in which one arm teaches all, and the others nothing."""
    matrix = np.zeros((ARMS, ARMS))
    matrix[:, rng.integers(ARMS)] = 0.15 / rates
    return matrix


PROBLEMS: dict[str, Callable[[np.random.Generator], Instance]] = {
    "saturation": make_instance,
    "one arm": functools.partial(make_instance, transfer=only_one_teaches),
    "transfer": functools.partial(make_instance, transfer=one_teacher),
    "abrupt change": functools.partial(make_instance, transfer=one_teacher, changes=True),
    "gradual change": functools.partial(make_instance, swings=True),
    "forgetting": functools.partial(make_instance, transfer=one_teacher, forgetting=0.05),
    "noise": functools.partial(make_instance, transfer=one_teacher, noise=0.05),
}
CONTENDERS = {
    "fixed": {"policy": "fixed"},
    "uniform": {"policy": "uniform"},
    "staged": {"policy": "staged", "stages": STAGES},
    **{
        f"{policy}, {reward}": {"policy": policy, "reward": reward}
        for policy in ("exp3s", "thompson", "birdie")
        for reward in sorted(REWARDS)
    },
}


def instance_of(problem: str, seed: int) -> Instance:
    """Return the problem of a seed."""
    return PROBLEMS[problem](np.random.default_rng((sorted(PROBLEMS).index(problem), seed)))


def learned(instance: Instance, x: np.ndarray, decision: int, mixture: np.ndarray) -> np.ndarray:
    """Return what is learned after a decision, from what was learned before it."""
    gain = instance.rates[decision] * (instance.transfer[decision] @ mixture)
    return (1 - instance.forgetting) * x + gain


def loss_of(instance: Instance, x: np.ndarray) -> np.ndarray:
    """Return the losses, without noise."""
    return instance.floor + instance.height * np.exp(-x)


def run_policy(config: BanditConfig, instance: Instance, seed: int) -> float:
    """Return the mean of the final losses, without noise."""
    state = init_bandit(config, OWN_WEIGHTS, np.arange(ARMS), DECISIONS, jax.random.key(seed))
    x = np.zeros(ARMS)
    for decision in range(DECISIONS):
        measured = loss_of(instance, x) + instance.noise[decision]
        state = propose(observe(state, np.maximum(measured, 1e-3).astype(np.float32)))
        x = learned(instance, x, decision, np.asarray(state.mixture, np.float64))
    return float(loss_of(instance, x).mean())


@functools.partial(jax.jit, static_argnames="is_constant")
def descend(instance: Instance, is_constant: bool) -> jax.Array:
    """Return the best final mean loss over all schedules, or over mixtures that never change."""

    def final_loss(logits):
        mixtures = jnp.broadcast_to(jax.nn.softmax(logits), (DECISIONS, ARMS))

        def step(x, inputs):
            rates, transfer, mixture = inputs
            return (1 - instance.forgetting) * x + rates * (transfer @ mixture), None

        x, _ = jax.lax.scan(step, jnp.zeros(ARMS), (instance.rates, instance.transfer, mixtures))
        return jnp.mean(instance.floor + instance.height * jnp.exp(-x))

    logits = jnp.zeros((1 if is_constant else DECISIONS, ARMS))
    optimizer = optax.adam(optax.cosine_decay_schedule(0.3, 3000))

    def update(carry, _):
        logits, moments = carry
        change, moments = optimizer.update(jax.grad(final_loss)(logits), moments)
        return (optax.apply_updates(logits, change), moments), None

    (logits, _), _ = jax.lax.scan(update, (logits, optimizer.init(logits)), length=3000)
    return final_loss(logits)


def bandit_config(settings: Mapping[str, str]) -> BanditConfig:
    """Return the bandit of a contender, whose critic is a small one."""
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
    """The seeds of every problem.

    Attributes:
        name: the name.
        seeds: their number.
    """

    name: str
    seeds: int


SCALES: Mapping[str, Scale] = MappingProxyType({"smoke": Scale("smoke", 1), "full": Scale("full", 4)})


class Run(NamedTuple):
    """A contender on all problems, or the oracle.

    Attributes:
        scale: the name of its scale.
        contender: the name of the contender.
    """

    scale: str
    contender: str

    @property
    def name(self) -> str:
        """The name of the run within its scale, as --only matches it."""
        return self.contender.replace(", ", "-")


Results = Mapping[Run, Mapping[str, Any]]
# Regret by contender and problem, for each seed.
Regrets = Mapping[str, Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class BanditRegret(Study[Scale, Run]):
    """What every policy is short of the best schedule; it reads no text and trains no model."""

    name = "bandit_regret"
    page = "bandit.md"
    scales = SCALES
    make_run = Run
    has_text = False

    def runs(self) -> Iterator[Run]:
        """Give the oracle and the contenders."""
        return (Run(self.scale.name, contender) for contender in (ORACLE, *CONTENDERS))

    def measure(self, run: Run, clock: Clock, log: Path) -> Outcome:
        """Run a contender on all problems, or find the best schedules."""
        del log
        seeds = range(self.scale.seeds)
        with clock.stage("measuring"):
            if run.contender == ORACLE:
                best = {problem: [find_oracle(problem, seed) for seed in seeds] for problem in PROBLEMS}
                schedules, constants = (
                    {problem: [pair[kind] for pair in pairs] for problem, pairs in best.items()}
                    for kind in range(2)
                )
                return Outcome({"schedule": schedules, "constant": constants})
            config = bandit_config(CONTENDERS[run.contender])
            losses = {
                problem: [run_policy(config, instance_of(problem, seed), seed) for seed in seeds]
                for problem in PROBLEMS
            }
        return Outcome({"config": dataclasses.asdict(config), "losses": losses})

    def tables(self, results: Results) -> list[str]:
        """Return the regret of every contender on every problem."""
        table = regrets(results)
        if "uniform" not in table:
            return []
        rows = []
        for contender, row in table.items():
            cells = []
            for problem in PROBLEMS:
                difference = row[problem] - table["uniform"][problem]
                error = difference.std(ddof=1) / np.sqrt(difference.size) if difference.size > 1 else 0.0
                cells.append(f"{row[problem].mean():.3f} ± {error:.3f}")
            rows.append([contender, *cells, f"{shares_of(table, contender).mean():.0%}"])
        return [rows_of_table(["policy, reward", *PROBLEMS, "mean of uniform's"], rows)]

    def figures(self, results: Results) -> Iterator[tuple[str, Figure]]:
        """Give a map of regrets in shares of uniform's."""
        table = regrets(results)
        if "uniform" in table:
            yield "regret", draw(table)


def find_oracle(problem: str, seed: int) -> tuple[float, float]:
    """Return the best final loss over all schedules, and over mixtures that never change."""
    instance = instance_of(problem, seed)
    instance = instance._replace(forgetting=jnp.float32(instance.forgetting))
    return float(descend(instance, is_constant=False)), float(descend(instance, is_constant=True))


def regrets(results: Results) -> Regrets:
    """Return the final regret of every contender that has a result; none without the oracle."""
    found = {run.contender: result for run, result in results.items()}
    if ORACLE not in found:
        return {}
    best = {problem: np.array(losses) for problem, losses in found[ORACLE]["schedule"].items()}
    losses = {CONSTANT: found[ORACLE]["constant"]}
    losses |= {name: found[name]["losses"] for name in CONTENDERS if name in found}
    return {
        contender: {problem: np.array(row[problem]) - best[problem] for problem in PROBLEMS}
        for contender, row in losses.items()
    }


def shares_of(table: Regrets, contender: str) -> np.ndarray:
    """Return the regret of a contender on each problem as a share of uniform's."""
    return np.array(
        [table[contender][problem].mean() / table["uniform"][problem].mean() for problem in PROBLEMS]
    )


def draw(table: Regrets) -> Figure:
    """Return a map of regrets in shares of uniform's, a line a contender."""
    figure = Figure(figsize=(9, 0.36 * len(table) + 1.5), layout="constrained")
    axes = figure.subplots()
    shares = np.array([shares_of(table, contender) for contender in table])
    octaves = np.log2(np.maximum(shares, 1e-3))
    axes.imshow(octaves, cmap="RdBu_r", vmin=-1.5, vmax=1.5, aspect="auto")
    for (line, column), share in np.ndenumerate(shares):
        # Both ends of the map are dark.
        color = "white" if abs(octaves[line, column]) > 1 else "black"
        axes.text(column, line, f"{share:.0%}", ha="center", va="center", fontsize=8, color=color)
    axes.set_xticks(range(len(PROBLEMS)), list(PROBLEMS), rotation=20)
    axes.set_yticks(range(len(table)), list(table))
    axes.set_title("Final regret, in shares of uniform's")
    return figure


if __name__ == "__main__":
    main(BanditRegret, __doc__)
