"""Regret of every reward and policy of the bandit on problems whose best mixtures are known.

    python -m studies.bandit_regret [--output=DIR] [--plot=regret.png]

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

Finished cells are kept in --output, one JSON file each, and are not run again. --contenders runs some of
them; the table and the picture show all whose problems are all there. `fixed` holds 0.3 of one arm.
"""

import argparse
import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from birdie_jax.bandit import REWARDS, init_bandit, observe, propose
from birdie_jax.config import BanditConfig
from birdie_jax.storage.cache_folder import cache_folder

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
    return PROBLEMS[problem](np.random.default_rng((sorted(PROBLEMS).index(problem), seed)))


def learned(instance: Instance, x, decision: int, mixture):
    gain = instance.rates[decision] * (instance.transfer[decision] @ mixture)
    return (1 - instance.forgetting) * x + gain


def loss_of(instance: Instance, x):
    return instance.floor + instance.height * np.exp(-x)


def run_policy(config: BanditConfig, instance: Instance, seed: int) -> dict:
    """Return the mean loss after every decision, without noise, and the mixtures."""
    state = init_bandit(config, OWN_WEIGHTS, np.arange(ARMS), DECISIONS, jax.random.key(seed))
    x = np.zeros(ARMS)
    curve, mixtures = [], []
    for decision in range(DECISIONS):
        measured = loss_of(instance, x) + instance.noise[decision]
        state = propose(observe(state, np.maximum(measured, 1e-3).astype(np.float32)))
        mixtures.append(np.asarray(state.mixture, np.float64))
        x = learned(instance, x, decision, mixtures[-1])
        curve.append(float(loss_of(instance, x).mean()))
    return {"curve": curve, "largest": [float(mixture.max()) for mixture in mixtures]}


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


def bandit_config(settings: dict) -> BanditConfig:
    return BanditConfig(
        critic_layers=2,
        critic_features=32,
        critic_state=32,
        critic_updates=50,
        critic_learning_rate=2e-3,
        candidates=256,
        **settings,
    )


def run_cell(problem: str, contender: str, seeds: int) -> dict:
    config = bandit_config(CONTENDERS[contender])
    runs = [run_policy(config, instance_of(problem, seed), seed) for seed in range(seeds)]
    return {"problem": problem, "contender": contender, "config": dataclasses.asdict(config), "runs": runs}


def find_oracle(problem: str, seeds: int) -> dict:
    best = {"problem": problem, "schedule": [], "constant": []}
    for seed in range(seeds):
        instance = instance_of(problem, seed)
        instance = instance._replace(forgetting=jnp.float32(instance.forgetting))
        best["schedule"].append(float(descend(instance, is_constant=False)))
        best["constant"].append(float(descend(instance, is_constant=True)))
    return best


def regrets(output: Path, seeds: int, wanted: list[str]) -> dict[str, dict[str, np.ndarray]]:
    """Return the final regret of every contender, problem and seed, running what is missing of `wanted`.

    A contender of which a problem is missing is left out.
    """

    def kept(problem: str, contender: str, make: Callable[[], dict]) -> dict | None:
        stem = f"{problem}-{contender}-{seeds}".replace(", ", "-").replace(" ", "_")
        path = output / f"{stem}.json"
        if not path.exists() and contender in ("oracle", *wanted):
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(make()))
            partial.rename(path)
            print(f"finished {stem}", flush=True)
        return json.loads(path.read_text()) if path.exists() else None

    best, table = {}, {"best constant mixture": {}}
    for problem in PROBLEMS:
        found = kept(problem, "oracle", functools.partial(find_oracle, problem, seeds))
        assert found is not None
        best[problem] = np.array(found["schedule"])
        table["best constant mixture"][problem] = np.array(found["constant"]) - best[problem]
    for contender in CONTENDERS:
        row = {}
        for problem in PROBLEMS:
            cell = kept(problem, contender, functools.partial(run_cell, problem, contender, seeds))
            if cell is not None:
                row[problem] = np.array([run["curve"][-1] for run in cell["runs"]]) - best[problem]
        if len(row) == len(PROBLEMS):
            table[contender] = row
    return table


def show(table: dict[str, dict[str, np.ndarray]]) -> None:
    print(f"| policy, reward | {' | '.join(PROBLEMS)} | mean of uniform's |")
    print("|---" * (len(PROBLEMS) + 2) + "|")
    for contender, row in table.items():
        shares = [row[problem].mean() / table["uniform"][problem].mean() for problem in PROBLEMS]
        cells = []
        for problem in PROBLEMS:
            difference = row[problem] - table["uniform"][problem]
            error = difference.std(ddof=1) / np.sqrt(difference.size) if difference.size > 1 else 0.0
            cells.append(f"{row[problem].mean():.3f} ± {error:.3f}")
        print(f"| {contender} | {' | '.join(cells)} | {np.mean(shares):.0%} |")


def draw(table: dict[str, dict[str, np.ndarray]], path: Path) -> None:
    figure = Figure(figsize=(9, 0.36 * len(table) + 1.5), layout="constrained")
    axes = figure.subplots()
    shares = np.array(
        [
            [row[problem].mean() / table["uniform"][problem].mean() for problem in PROBLEMS]
            for row in table.values()
        ]
    )
    octaves = np.log2(np.maximum(shares, 1e-3))
    axes.imshow(octaves, cmap="RdBu_r", vmin=-1.5, vmax=1.5, aspect="auto")
    for (line, column), share in np.ndenumerate(shares):
        # Both ends of the map are dark.
        color = "white" if abs(octaves[line, column]) > 1 else "black"
        axes.text(column, line, f"{share:.0%}", ha="center", va="center", fontsize=8, color=color)
    axes.set_xticks(range(len(PROBLEMS)), list(PROBLEMS), rotation=20)
    axes.set_yticks(range(len(table)), list(table))
    axes.set_title("Final regret, in shares of uniform's")
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=cache_folder() / "studies/bandit_regret")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--contenders", nargs="*", default=list(CONTENDERS), choices=list(CONTENDERS))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    table = regrets(arguments.output, arguments.seeds, arguments.contenders)
    show(table)
    draw(table, arguments.plot or arguments.output / "regret.png")


if __name__ == "__main__":
    main()
