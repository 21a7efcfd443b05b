"""Which state recalls: multi-query associative recall by mixer and by size of the state.

    python -m studies.recall --scale=small --results=results/recall

Models of two layers and 64 features learn one task, MQAR (Arora et al. 2023): pairs of a key and a value,
then each key again as a query for its value. Only the values have loss, models read texts causally, and
every batch is new. A run is one mixer with one size of state, one learning rate and one seed. Recall is
learned in a narrow window of rates, so a size is judged by its best rate. A run trains in this process and
takes two to five minutes of a shared core at the scale small.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from birdie_jax.batch import Batch
from birdie_jax.config import ModelConfig, OptimizerConfig
from birdie_jax.engine.sharded_step import StepMetrics, take_step
from birdie_jax.engine.state import TrainState
from birdie_jax.models import build_model
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.gated_deltanet import GatedDeltaNetConfig
from birdie_jax.models.hawk import HawkConfig
from birdie_jax.models.mamba import MambaConfig
from birdie_jax.models.mamba2 import Mamba2Config
from birdie_jax.models.parameters import parameter_policies
from birdie_jax.models.registry import model_names
from birdie_jax.optimizers import make_optimizer
from birdie_jax.pretraining.language_model_step import language_model_loss
from birdie_jax.tasks.associative_recall import AssociativeRecall
from studies.figure_style import series_colour, series_marker
from studies.runner import Outcome, Study, main
from studies.tables import cells_of_circumstances, mean_over_seeds, rows_of_table, section
from studies.verbs import Clock

FEATURES, LAYERS = 64, 2
TABLE_ROWS = 72
POSITIONS_OF_A_PAIR = 4
MEASURED_SEQUENCES = 512


@dataclass(frozen=True)
class Scale:
    """The sizes of the runs.

    Attributes:
        name: the name.
        pairs: the counts of key-value pairs in a sequence; the last count is measured.
        length: the positions of a row.
        rows: the rows of a step.
        steps: the train steps.
        rates: the peak learning rates.
        seeds: the seeds.
        states: the sizes of a layer's state, in numbers.
    """

    name: str
    pairs: tuple[int, ...]
    length: int
    rows: int
    steps: int
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    states: tuple[int, ...]


SCALES: Mapping[str, Scale] = MappingProxyType(
    {
        "smoke": Scale("smoke", (1, 2), 16, 4, 4, (3e-3,), (0,), (512,)),
        "small": Scale(
            *("small", (4, 8, 16), 64, 32, 1000),
            rates=(2.5e-3, 5e-3, 1e-2),
            seeds=(0, 1, 2),
            states=(512, 2048, 8192),
        ),
    }
)


WIDE = ("gated_ssm_plus", "birdie_ssm", "hawk_mlp")
"""The mixers with a channel for each number of state."""


def mixer(name: str, numbers: int) -> dict[str, Any] | None:
    """Return the config fields for a state of `numbers` numbers a layer; None if there is no such size.

    The state of the mixers in `WIDE` is as wide as the layer. A large one would give the model ten times
    the parameters of the others, so these mixers have no large size. The states of the other mixers grow
    independently of the layer. The transformer's cache of 64 tokens has 8,192 numbers.
    """
    if name in WIDE:
        return {"state": numbers, "sections": (HawkConfig(heads=8),)} if numbers <= 512 else None
    inner = 2 * FEATURES
    if name == "mamba":
        return {"state": inner, "sections": (MambaConfig(state_size=numbers // inner),)}
    if name == "mamba2":
        section = Mamba2Config(head_features=32, state_size=numbers // inner)
        return {"state": inner, "sections": (section,)}
    if name.startswith("gated_deltanet"):
        # Two heads; a value has twice the channels of a key, as published.
        key = round((numbers / 4) ** 0.5)
        section = GatedDeltaNetConfig(heads=2, key_features=key, channel_decay=name.endswith("by_channel"))
        return {"state": numbers // key, "sections": (section,)}
    if name == "transformer":
        return {"sections": (AttentionConfig(heads=4),)} if numbers == 8192 else None
    raise ValueError(f"mixer: found {name!r}; allowed: {', '.join(MIXERS)}")


MIXERS = (
    "gated_deltanet",
    "gated_deltanet_by_channel",
    "mamba2",
    "mamba",
    "gated_ssm_plus",
    "hawk_mlp",
    "birdie_ssm",
    "transformer",
)


class Run(NamedTuple):
    """The training and measurement of a model.

    Attributes:
        scale: the name of the scale.
        mixer: the name of the mixer.
        state: the size of a layer's state, in numbers.
        rate: the peak learning rate.
        seed: the seed of parameters and sequences.
    """

    scale: str
    mixer: str
    state: int
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """The name of the run within its scale, as --only matches it."""
        return f"{self.mixer}.{self.state}.{self.rate:g}.{self.seed}"


Results = Mapping[Run, Mapping[str, Any]]


def draw_batch(scale: Scale, pairs: Sequence[int], rng: np.random.Generator) -> Batch:
    """Return packed rows of sequences. The sequences of a row have one of the given counts of pairs.

    Only the queried values are targets with loss.
    """
    shape = (scale.rows, scale.length)
    inputs, segments, positions = (np.empty(shape, np.int32) for _ in range(3))
    mask = np.zeros(shape, bool)
    for row in range(scale.rows):
        number = int(rng.choice(pairs))
        size = POSITIONS_OF_A_PAIR * number
        task = AssociativeRecall(vocab_size=TABLE_ROWS, sequence_length=size, key_value_pairs=number)
        for sample, start in enumerate(range(0, scale.length, size)):
            sequence = task.draw_sequence(rng)
            of_sample = row, slice(start, start + size)
            inputs[of_sample] = (*sequence.pairs, *sequence.queries)
            segments[of_sample], positions[of_sample] = sample + 1, np.arange(size)
            # The position of a query key predicts its value.
            mask[row, start + 2 * number + 2 * sequence.slots] = True
    nothing = np.zeros_like(inputs)
    return Batch(inputs, np.roll(inputs, -1, axis=1), mask, segments, positions, nothing > 0, nothing)


@dataclass(frozen=True)
class Recall(Study[Scale, Run]):
    """Measures recall by mixer and by size of the state."""

    name = "recall"
    page = "recall.md"
    scales = SCALES
    make_run = Run
    has_text = False

    def runs(self) -> Iterator[Run]:
        """Yield all runs, seed by seed."""
        for seed in self.scale.seeds:
            for state in self.scale.states:
                for name in MIXERS:
                    if mixer(name, state) is not None:
                        for rate in self.scale.rates:
                            yield Run(self.scale.name, name, state, rate, seed)

    def title(self, run: Run) -> str:
        """Return a description of a run."""
        return f"{run.mixer}, {run.state} numbers a layer, rate {run.rate:g}"

    def measure(self, run: Run, clock: Clock, log: Path) -> Outcome:
        """Train a model, and measure it on unseen sequences."""
        del log
        with clock.stage("training"):
            return Outcome(train(self.scale, run), [self.folder(run)])

    def tables(self, results: Results) -> list[str]:
        """Return the recall of each mixer and size at its best rate, and at every rate by seed."""
        best = best_rates(results)
        head = ["mixer", "numbers a layer", "parameters", "best rate", "values recalled", "by seed"]
        rows = []
        for (name, state), (rate, values, parameters) in best.items():
            by_seed = ", ".join(f"{100 * value:.0f}" for value in values)
            cells = [name, f"{state:,}", f"{parameters:,}", f"{rate:g}"]
            rows.append([*cells, mean_over_seeds([100 * value for value in values], ".0f", " %"), by_seed])
        rates = sorted({run.rate for run in results})
        sweep = [
            [
                *(name, f"{state:,}"),
                *(
                    " ".join(
                        f"{100 * result['recalled']:.0f}"
                        for run, result in sorted(results.items())
                        if (run.mixer, run.state, run.rate) == (name, state, rate)
                    )
                    for rate in rates
                ),
            ]
            for name, state in best
        ]
        under = [cells_of_circumstances(result) for result in results.values()]
        commits = ", ".join(sorted({f"{commit} ({date})" for _, commit, date in under}))
        return [
            section("Recall by mixer and size of state", rows_of_table(head, rows)),
            section(
                "Every rate, by seed",
                rows_of_table(["mixer", "numbers a layer", *(f"{rate:g}" for rate in rates)], sweep)
                + f"\n\nCommits: {commits}.",
            ),
        ]

    def figures(self, results: Results) -> Iterator[tuple[str, Figure]]:
        """Yield a figure of recall by the size of the state: one line per mixer, one dot per seed."""
        best = best_rates(results)
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        for number, name in enumerate(MIXERS):
            found = [(state, values) for (mixer, state), (_, values, _) in best.items() if mixer == name]
            if not found:
                continue
            colour, marker = series_colour(number), series_marker(number)
            states = [state for state, _ in found]
            means = [100 * np.mean(values) for _, values in found]
            axes.plot(states, means, color=colour, marker=marker, label=name.replace("_", " "))
            for state, values in found:
                axes.plot(
                    [state] * len(values), [100 * one for one in values], ".", color=colour, alpha=0.5
                )
        axes.set_xscale("log", base=2)
        axes.set_xlabel("numbers of a layer's state (transformer: no bound)")
        axes.set_ylabel("values recalled (%)")
        axes.set_ylim(0, 103)
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
        yield "states", figure


Best = dict[tuple[str, int], tuple[float, list[float], int]]


def best_rates(results: Results) -> Best:
    """Return by mixer and state the rate of the best mean recall, its recall by seed, and parameters."""
    groups: dict[tuple[str, int], dict[float, list[tuple[float, int]]]] = {}
    for run, result in sorted(results.items(), key=lambda item: item[0].seed):
        rates = groups.setdefault((run.mixer, run.state), {})
        rates.setdefault(run.rate, []).append((result["recalled"], result["parameters"]))
    best: Best = {}
    for key, rates in sorted(groups.items(), key=lambda item: (MIXERS.index(item[0][0]), item[0][1])):
        # Skip rates with fewer seeds: they are still running.
        most = max(map(len, rates.values()))
        whole = {rate: found for rate, found in rates.items() if len(found) == most}
        rate = max(whole, key=lambda rate: np.mean([one for one, _ in whole[rate]]))
        best[key] = rate, [one for one, _ in whole[rate]], whole[rate][0][1]
    return best


def model_config(run: Run) -> ModelConfig:
    """Return the architecture of a run.

    Raises:
        ValueError: the mixer has no state of that size.
    """
    fields = mixer(run.mixer, run.state)
    if fields is None:
        raise ValueError(f"recall: {run.mixer} has no state of {run.state} numbers")
    name = next(one for one in sorted(model_names(), key=len, reverse=True) if run.mixer.startswith(one))
    sizes = {"layers": LAYERS, "features": FEATURES, "mlp_features": 2 * FEATURES}
    return ModelConfig(
        **{"name": name, "bidirectional": False, "dtype": "float32", "remat": "none"} | sizes | fields
    )


def train(scale: Scale, run: Run) -> dict[str, Any]:
    """Train a run's model; return its recall, number of parameters and learning curve."""
    config = model_config(run)
    model = build_model(config, TABLE_ROWS)
    optimizer = make_optimizer(
        OptimizerConfig(
            learning_rate=1.0, final_learning_rate=0.0, warmup_steps=scale.steps // 20, weight_decay=0.0
        ),
        scale.steps,
        parameter_policies(model),
    )
    batch = draw_batch(scale, scale.pairs, np.random.default_rng([run.seed, 0]))
    params = jax.jit(model.init)(jax.random.key(run.seed), batch)["params"]
    state = TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), {})
    loss = language_model_loss(model, 1, scale.length)

    # The rate is an argument, so all rates share one compiled program.
    @partial(jax.jit, donate_argnums=0)
    def step(state: TrainState, batch: Batch, rate: float) -> tuple[TrainState, StepMetrics]:
        def update(grads, opt_state, params=None):
            changes, opt_state = optimizer.update(grads, opt_state, params)
            return jax.tree.map(lambda change: rate * change, changes), opt_state

        return take_step(loss, optax.GradientTransformation(optimizer.init, update), 1, state, batch)

    curve, right, total = [], 0.0, 0.0
    every = max(scale.steps // 20, 1)
    for number in range(1, scale.steps + 1):
        batch = draw_batch(scale, scale.pairs, np.random.default_rng([run.seed, number]))
        state, metrics = step(state, batch, run.rate)
        sums = jax.device_get(metrics.sums)
        right, total = right + float(sums["correct"][0]), total + float(sums["tokens"][0])
        if number % every == 0:
            curve.append([number, right / total])
            right = total = 0.0
    measured = jax.jit(loss.sums)
    right = total = 0.0
    # No step uses this generator.
    unseen = np.random.default_rng([run.seed, scale.steps + 1, 1])
    for _ in range(max(MEASURED_SEQUENCES // scale.rows, 1)):
        batch = draw_batch(scale, scale.pairs[-1:], unseen)
        _, sums = jax.device_get(measured(state.params, batch))
        right, total = right + float(sums["correct"][0]), total + float(sums["tokens"][0])
    return {
        "recalled": right / total,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "curve": curve,
    }


if __name__ == "__main__":
    main(Recall, __doc__)
