"""Does the bandit steer? Compares rewards and policies in real pre-training, at small scale.

    python -m studies.bandit_steering --scale=small --results=results/steering --text='/data/*.jsonl'

A Gated SSM+ of 2 layers and 64 features is pre-trained for 400 steps of 4 rows of 256 tokens on the eight
arms of the mixture `tiny`, with a decision every 20 steps. Contenders differ only in `config.bandit`; runs
of one seed are otherwise equal. The measure is the final validation loss of every arm, and their mean over
arms with equal weights. Runs of a seed are compared with `fixed`. By quarter of the run, the tables also
show the entropy of the mixture, as a share of that of eight equal arms, and the size of rewards. `smoke`
takes 4 decisions of 5 steps. --text: any value of config.data.source.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from birdie_jax.bandit import REWARDS
from birdie_jax.config import BanditConfig
from studies.figure_style import series_colour, series_marker
from studies.one_training import OneTraining
from studies.runner import main
from studies.tables import mean_over_seeds, rows_of_table, section

SETTINGS = {
    "data.vocab_size": 512,
    "objectives.mixture": "tiny",
    "batching.rows": 4,
    "batching.length": 256,
    "model.layers": 2,
    "model.features": 64,
    "model.state": 128,
    "model.mlp_features": 128,
    "bandit.every_steps": 20,
    "bandit.critic_layers": 2,
    "bandit.critic_updates": 100,
    "optimizer.learning_rate": 4e-3,
    "optimizer.warmup_steps": 40,
    "train.num_steps": 400,
    "train.log_every_steps": 20,
    "checkpoint.every_steps": 100,
    "eval.batches_per_arm": 1,
    "eval.rows": 4,
}
STAGES = (
    "0: causal_lm=3, prefix_lm=1, span_corruption=1; "
    "0.5: causal_lm=1, prefix_lm=1, span_corruption=1, full_span_corruption=1, "
    "full_span_corruption_deshuffling=1, deshuffling=1, copying=1, selective_copying=1"
)
# The order of the runs within a seed.
CONTENDERS = {
    "fixed": {"policy": "fixed"},
    "uniform": {"policy": "uniform"},
    "birdie-published": {"policy": "birdie", "reward": "published"},
    "thompson-learning_progress": {"policy": "thompson", "reward": "learning_progress"},
    "birdie-learning_progress": {"policy": "birdie", "reward": "learning_progress"},
    "exp3s-learning_progress": {"policy": "exp3s", "reward": "learning_progress"},
    "birdie-running_scale": {"policy": "birdie", "reward": "running_scale"},
    "thompson-running_scale": {"policy": "thompson", "reward": "running_scale"},
    "staged": {"policy": "staged", "stages": STAGES},
    "exp3s-running_scale": {"policy": "exp3s", "reward": "running_scale"},
    "thompson-published": {"policy": "thompson", "reward": "published"},
    "exp3s-published": {"policy": "exp3s", "reward": "published"},
    "birdie-absolute_progress": {"policy": "birdie", "reward": "absolute_progress"},
    "thompson-absolute_progress": {"policy": "thompson", "reward": "absolute_progress"},
    "exp3s-absolute_progress": {"policy": "exp3s", "reward": "absolute_progress"},
}
BASELINE = "fixed"
# Contenders with a constant mixture.
UNSTEERED = ("fixed", "uniform")


@dataclass(frozen=True)
class Scale:
    """The size of the study.

    Attributes:
        name: the name.
        changes: the settings that differ from `SETTINGS`.
        seeds: the seeds of each contender.
    """

    name: str
    changes: Mapping[str, Any]
    seeds: tuple[int, ...]


SCALES: Mapping[str, Scale] = MappingProxyType(
    {
        "smoke": Scale(
            "smoke", {"train.num_steps": 20, "bandit.every_steps": 5, "checkpoint.every_steps": 10}, (0,)
        ),
        "small": Scale("small", {}, (0, 1, 2)),
    }
)


class Run(NamedTuple):
    """The pre-training of a contender with a seed.

    Attributes:
        scale: the name of the scale.
        contender: the name of the contender.
        seed: the seed of all random numbers.
    """

    scale: str
    contender: str
    seed: int

    @property
    def name(self) -> str:
        """The name of the run within its scale, as --only matches it."""
        return f"{self.contender}.{self.seed}"


Results = Mapping[Run, Mapping[str, Any]]


@dataclass(frozen=True)
class BanditSteering(OneTraining[Scale, Run]):
    """Compares rewards and policies of the bandit in pre-training."""

    name = "bandit_steering"
    page = "bandit.md"
    scales = SCALES
    make_run = Run

    def runs(self) -> Iterator[Run]:
        """Yield the runs of the scale, seed by seed."""
        for seed in self.scale.seeds:
            for contender in CONTENDERS:
                yield Run(self.scale.name, contender, seed)

    def settings(self, run: Run) -> dict[str, Any]:
        """Return the common settings and the bandit of the run's contender."""
        bandit = {f"bandit.{name}": value for name, value in CONTENDERS[run.contender].items()}
        return {**SETTINGS, **self.scale.changes, **bandit, "seed": run.seed}

    def tables(self, results: Results) -> list[str]:
        """Return the contenders' losses, also by arm, and the rewards computed from losses."""
        if not results:
            return []
        return [
            _table_of_contenders(results),
            section("By arm: the last validation loss", _table_of_arms(results)),
            section(
                "What each reward makes of the losses of runs that nothing steered",
                _table_of_rewards(results),
            ),
        ]

    def figures(self, results: Results) -> Iterator[tuple[str, Figure]]:
        """Yield a figure of losses, entropy and rewards by step."""
        yield "steering", _draw(_by_contender(results))


def _by_contender(results: Results) -> dict[str, dict[int, Mapping[str, Any]]]:
    """Return the results by contender and seed, in the order of the contenders."""
    found: dict[str, dict[int, Mapping[str, Any]]] = {name: {} for name in CONTENDERS}
    for run, result in results.items():
        found[run.contender][run.seed] = result
    return {name: runs for name, runs in found.items() if runs}


def entropy(result: Mapping[str, Any]) -> np.ndarray:
    """Return the entropy of the mixture at each decision; it is 1 if all arms are equal."""
    p = np.array(result["probability"])
    return -np.sum(p * np.log(np.maximum(p, 1e-12)), axis=1) / np.log(p.shape[1])


def _by_quarter(values: np.ndarray) -> list[float]:
    return [float(np.mean(part)) for part in np.array_split(values, 4)]


def _final(result: Mapping[str, Any]) -> np.ndarray:
    return np.array(result["validation_loss"][-1])


def _table_of_contenders(results: Results) -> str:
    found, rows = _by_contender(results), []
    base = found.get(BASELINE, {})
    for name, runs in found.items():
        losses = [_final(one).mean() for one in runs.values()]
        paired = [
            _final(one).mean() - _final(base[seed]).mean() for seed, one in runs.items() if seed in base
        ]
        against = mean_over_seeds(paired, "+.3f") if paired and name != BASELINE else ""
        even = np.mean([_by_quarter(entropy(one)) for one in runs.values()], axis=0)
        sizes = np.mean([_by_quarter(np.abs(one["reward"]).mean(axis=1)) for one in runs.values()], axis=0)
        largest = np.mean([np.max(one["probability"], axis=1).mean() for one in runs.values()])
        rows.append(
            [
                name,
                str(len(runs)),
                f"{np.mean(losses):.3f}",
                against,
                " ".join(f"{value:.2f}" for value in even),
                " ".join(f"{value:.2g}" for value in sizes),
                f"{largest:.2f}",
            ]
        )
    head = ["contender", "seeds", "mean loss of the arms", "against fixed (95 %)", "evenness by quarter"]
    return rows_of_table([*head, "mean size of a reward by quarter", "largest probability, mean"], rows)


def _table_of_arms(results: Results) -> str:
    arms = next(iter(results.values()))["arms"]
    rows = []
    for name, runs in _by_contender(results).items():
        losses = np.mean([_final(one) for one in runs.values()], axis=0)
        rows.append([name, *(f"{loss:.3f}" for loss in losses)])
    return rows_of_table(["contender", *arms], rows)


def _table_of_rewards(results: Results) -> str:
    """Return a table of mean reward sizes and of the rewards' standard deviations over arms."""
    rows = []
    for contender, runs in _by_contender(results).items():
        if contender not in UNSTEERED:
            continue
        losses = jnp.stack([jnp.asarray(one["validation_loss"], jnp.float32) for one in runs.values()])
        # Standardised rewards amplify rounding errors in the first quarter.
        for name in (one for one in REWARDS if one != "standardised"):
            earned = np.stack([_rewards(name, of_run) for of_run in losses])
            measures = (np.abs(earned).mean(axis=(0, 2)), earned.std(axis=2).mean(axis=0))
            cells = [" ".join(f"{value:.2g}" for value in _by_quarter(part)) for part in measures]
            rows.append([contender, name, *cells])
    head = ["contender", "reward", "mean size by quarter", "standard deviation over arms by quarter"]
    return rows_of_table(head, rows)


@functools.partial(jax.jit, static_argnames="name")
def _rewards(name: str, losses: jax.Array) -> jax.Array:
    """Return the rewards [decisions - 1, arms] for losses [decisions, arms]."""
    reward = functools.partial(REWARDS[name], BanditConfig(), losses)
    return jax.lax.map(reward, jnp.arange(1, len(losses)))


def _draw(found: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> Figure:
    figure = Figure(figsize=(15, 4.5), layout="constrained")
    axes = figure.subplots(1, 3)
    for number, (name, runs) in enumerate(found.items()):
        style = {
            "label": name,
            "color": series_colour(number),
            "marker": series_marker(number),
            "markersize": 3,
        }
        steps = next(iter(runs.values()))["steps"]
        losses = np.mean([np.mean(one["validation_loss"], axis=1) for one in runs.values()], axis=0)
        axes[0].plot(steps[1:], losses[1:], **style)
        axes[1].plot(steps[:-1], np.mean([entropy(one) for one in runs.values()], axis=0), **style)
        sizes = np.mean([np.abs(one["reward"]).mean(axis=1) for one in runs.values()], axis=0)
        axes[2].plot(steps[1:], np.maximum(sizes, 1e-8), **style)
    axes[0].set(title="Mean validation loss of the arms", xlabel="step", ylabel="nats a token")
    axes[1].set(title="Entropy of the mixture", xlabel="step", ylabel="share of that of equal arms")
    axes[2].set(title="Mean size of a reward", xlabel="step", yscale="log")
    axes[0].legend(fontsize=7)
    return figure


if __name__ == "__main__":
    main(BanditSteering, __doc__)
