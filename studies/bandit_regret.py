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
- noise: as transfer, with a noise of 0.05 nats instead of 0.01;
- threshold dose: as saturation, but half of the arms show nothing of the first 0.3 to 1.2 that they learn;
- common trend: as transfer, and every arm learns by itself, whatever the mixture, ever more slowly;
- delayed returns: as transfer, and 1/8 of what is not yet shown of an action shows at each decision.

Rates, and what is lost, learned by itself or delayed, are those of 32 decisions; a run of more decisions
has as much in sum. A run is one contender on all problems; the run `oracle` finds the best schedules and
constant mixtures. `fixed` holds 0.3 of one arm. `full` has 32 decisions of the first seven problems, and
takes some minutes of a core; `long` has 128 of all, as a run that decides often, for policies that follow
gains; `smoke` has one seed.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from birdie_jax.bandit import init_bandit, observe, propose
from birdie_jax.config import BanditConfig
from studies.runner import Outcome, Study, main
from studies.tables import rows_of_table
from studies.verbs import Clock

ARMS, DECISIONS = 8, 32
SHARPNESS = 20.0
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
        trend: [decisions], what every arm learns by itself at a decision.
        release: the share of what is learned and not yet shown that shows at a decision; 1 = all of it.
        threshold: [arms], what must be learned before it shows.
    """

    rates: np.ndarray
    transfer: np.ndarray
    forgetting: float
    height: np.ndarray
    floor: np.ndarray
    noise: np.ndarray
    trend: np.ndarray
    release: float
    threshold: np.ndarray


class Learned(NamedTuple):
    """What the arms have learned.

    Attributes:
        shown: [arms], what the losses show, but for a threshold.
        hidden: [arms], what they will show later.
    """

    shown: np.ndarray | jax.Array
    hidden: np.ndarray | jax.Array


def make_instance(
    rng: np.random.Generator,
    decisions: int = DECISIONS,
    *,
    spread: float = 1.7,
    transfer: Callable[[np.random.Generator, np.ndarray], np.ndarray] | None = None,
    changes: bool = False,
    swings: bool = False,
    forgetting: float = 0.0,
    noise: float = 0.01,
    trend: float = 0.0,
    release: float = 1.0,
    has_threshold: bool = False,
) -> Instance:
    """Return a problem, of one or two phases with rates and transfer of their own."""
    share = DECISIONS / decisions

    def phase() -> tuple[np.ndarray, np.ndarray]:
        rates = 10 ** rng.permutation(np.linspace(-spread, 0, ARMS))
        return rates, np.eye(ARMS) if transfer is None else transfer(rng, rates)

    phases = [phase()]
    phases.append(phase() if changes else phases[0])
    halves = [decisions // 2, decisions - decisions // 2]
    rates, between = (np.repeat(np.stack(both), halves, axis=0) for both in zip(*phases, strict=True))
    if swings:
        angle = np.pi * np.arange(decisions)[:, None] / decisions + rng.uniform(0, 2 * np.pi, ARMS)
        rates = rates * 10 ** (0.5 * np.sin(angle))
    height, floor = rng.uniform(1, 4, ARMS), rng.uniform(0.1, 2, ARMS)
    errors = noise * rng.normal(size=(decisions + 1, ARMS))
    has_one = rng.permutation(ARMS) < ARMS // 2
    return Instance(
        rates * share,
        between,
        1.0 - (1.0 - forgetting) ** share,
        height,
        floor,
        errors,
        trend * share * np.exp(-np.arange(decisions) * share / 6),
        1.0 - (1.0 - release) ** share,
        np.where(has_one & has_threshold, rng.uniform(0.3, 1.2, ARMS), 0.0),
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


# In the order of their random numbers: a new one goes to the end.
PROBLEMS: dict[str, Callable[[np.random.Generator, int], Instance]] = {
    "abrupt change": functools.partial(make_instance, transfer=one_teacher, changes=True),
    "forgetting": functools.partial(make_instance, transfer=one_teacher, forgetting=0.05),
    "gradual change": functools.partial(make_instance, swings=True),
    "noise": functools.partial(make_instance, transfer=one_teacher, noise=0.05),
    "one arm": functools.partial(make_instance, transfer=only_one_teaches),
    "saturation": make_instance,
    "transfer": functools.partial(make_instance, transfer=one_teacher),
    "threshold dose": functools.partial(make_instance, has_threshold=True),
    "common trend": functools.partial(make_instance, transfer=one_teacher, trend=0.2),
    "delayed returns": functools.partial(make_instance, transfer=one_teacher, release=0.125),
}
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


def instance_of(problem: str, seed: int, decisions: int = DECISIONS) -> Instance:
    """Return the problem of a seed."""
    return PROBLEMS[problem](np.random.default_rng((list(PROBLEMS).index(problem), seed)), decisions)


def nothing_learned() -> Learned:
    """Return what is learned before the first decision."""
    return Learned(np.zeros(ARMS), np.zeros(ARMS))


def learned(instance: Instance, before: Learned, decision: int, mixture: np.ndarray) -> Learned:
    """Return what is learned after a decision, from what was learned before it."""
    at = (instance.rates[decision], instance.transfer[decision], instance.trend[decision])
    return _learned(instance, before, at, mixture)


def _learned(instance: Instance, before: Learned, at: tuple, mixture: Any) -> Learned:
    rates, transfer, trend = at
    hidden = before.hidden + rates * (transfer @ mixture)
    kept = (1 - instance.forgetting) * before.shown + trend
    return Learned(kept + instance.release * hidden, (1 - instance.release) * hidden)


def loss_of(instance: Instance, found: Learned) -> np.ndarray:
    """Return the losses, without noise."""
    return np.asarray(_loss_of(instance, found, np))


def _loss_of(instance: Instance, found: Learned, numpy: ModuleType) -> Any:
    beyond = numpy.logaddexp(0, SHARPNESS * (found.shown - instance.threshold)) / SHARPNESS
    shown = numpy.where(instance.threshold > 0, beyond, found.shown)
    return instance.floor + instance.height * numpy.exp(-shown)


@jax.jit
def gains_of(instance: Instance, found: Learned, rates: jax.Array, transfer: jax.Array) -> jax.Array:
    """Return by how much a larger share of each arm lowers the mean loss of the next observation."""

    def mean_loss(mixture: jax.Array) -> jax.Array:
        return jnp.mean(_loss_of(instance, _learned(instance, found, (rates, transfer, 0.0), mixture), jnp))

    return -jax.grad(mean_loss)(jnp.zeros(ARMS))


def run_policy(config: BanditConfig, instance: Instance, seed: int) -> float:
    """Return the mean of the final losses, without noise."""
    decisions = len(instance.rates)
    state = init_bandit(config, OWN_WEIGHTS, np.arange(ARMS), decisions, jax.random.key(seed))
    found = nothing_learned()
    for decision in range(decisions):
        losses = np.maximum(loss_of(instance, found) + instance.noise[decision], 1e-3)
        accuracies = np.clip(1 - (losses - instance.floor) / instance.height, 0, 1)
        gains = gains_of(instance, found, instance.rates[decision], instance.transfer[decision])
        state = propose(observe(state, *(np.float32(each) for each in (losses, accuracies, gains))))
        found = learned(instance, found, decision, np.asarray(state.mixture, np.float64))
    return float(loss_of(instance, found).mean())


@functools.partial(jax.jit, static_argnames="is_constant")
def descend(instance: Instance, is_constant: bool) -> jax.Array:
    """Return the best final mean loss over all schedules, or over mixtures that never change."""
    decisions = len(instance.rates)

    def final_loss(logits):
        mixtures = jnp.broadcast_to(jax.nn.softmax(logits), (decisions, ARMS))

        def step(found, inputs):
            *at, mixture = inputs
            return _learned(instance, found, tuple(at), mixture), None

        nothing = Learned(jnp.zeros(ARMS), jnp.zeros(ARMS))
        inputs = (instance.rates, instance.transfer, instance.trend, mixtures)
        found, _ = jax.lax.scan(step, nothing, inputs)
        return jnp.mean(_loss_of(instance, found, jnp))

    logits = jnp.zeros((1 if is_constant else decisions, ARMS))
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
    """What is run.

    Attributes:
        name: the name.
        seeds: the seeds of every problem.
        decisions: the decisions of a run.
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
                return Outcome({"schedule": schedules, "constant": constants})
            config = bandit_config(CONTENDERS[run.contender])
            losses = {
                problem: [run_policy(config, each, seed) for seed, each in enumerate(of)]
                for problem, of in instances.items()
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
            for problem in row:
                difference = row[problem] - table["uniform"][problem]
                error = difference.std(ddof=1) / np.sqrt(difference.size) if difference.size > 1 else 0.0
                cells.append(f"{row[problem].mean():.3f} ± {error:.3f}")
            rows.append([contender, *cells, f"{shares_of(table, contender).mean():.0%}"])
        return [rows_of_table(["policy, reward", *table["uniform"], "mean of uniform's"], rows)]

    def figures(self, results: Results) -> Iterator[tuple[str, Figure]]:
        """Give a map of regrets in shares of uniform's."""
        table = regrets(results)
        if "uniform" in table:
            yield "regret", draw(table)


def find_oracle(instance: Instance) -> tuple[float, float]:
    """Return the best final loss over all schedules, and over mixtures that never change."""
    instance = jax.tree.map(jnp.float32, instance)
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
        contender: {problem: np.array(row[problem]) - best[problem] for problem in best}
        for contender, row in losses.items()
    }


def shares_of(table: Regrets, contender: str) -> np.ndarray:
    """Return the regret of a contender on each problem as a share of uniform's."""
    uniform = table["uniform"]
    return np.array([row.mean() / uniform[problem].mean() for problem, row in table[contender].items()])


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
    axes.set_xticks(range(shares.shape[1]), list(table["uniform"]), rotation=20)
    axes.set_yticks(range(len(table)), list(table))
    axes.set_title("Final regret, in shares of uniform's")
    return figure


if __name__ == "__main__":
    main(BanditRegret, __doc__)
