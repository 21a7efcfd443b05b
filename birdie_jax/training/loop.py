"""The train loop, from a configuration and prepared text to a finished run."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from birdie_jax.array_types import ArmVector
from birdie_jax.bandit import BanditState, observe, propose
from birdie_jax.batch import Batch
from birdie_jax.batching import (
    MadeBatch,
    MixtureBoard,
    RowSettings,
    RowStreams,
    first_positions,
    prefetched,
    validation_batches,
)
from birdie_jax.config import Config
from birdie_jax.objectives import Mixture
from birdie_jax.text import TokenShards
from birdie_jax.training.checkpoint import Checkpoints, NotFinite
from birdie_jax.training.metrics import MetricsFile, StepLog, TrainingDiverged
from birdie_jax.training.optimizer import learning_rate_schedule
from birdie_jax.training.programs import make_programs
from birdie_jax.training.progress import Progress
from birdie_jax.training.sharding import make_mesh, of_batch, on_every_device_alike
from birdie_jax.training.step import ArmSums, TrainState
from birdie_jax.training.stop import StopRequest


class TrainingText(NamedTuple):
    """What the loop reads: both splits, and the rows of the embedding table for their tokenizer."""

    train: TokenShards
    validation: TokenShards
    vocab_size: int


class Outcome(NamedTuple):
    """How training ended.

    Attributes:
        step: the last step that was done.
        completed: whether that is the last step of the run.
        stopped_by: name of the signal that asked for the end, or None.
        parameters: of the model.
    """

    step: int
    completed: bool
    stopped_by: str | None
    parameters: int


def train(config: Config, workdir: Path, text: TrainingText, mixture: Mixture) -> Outcome:
    """Train until `config.train.num_steps`, or until asked to stop, from the newest whole checkpoint on.

    Raises:
        ConfigError: batch or model cannot be divided among the devices.
        DataError: the text cannot make the examples that the mixture asks for.
        TrainingDiverged: the loss became NaN or infinite.
        CheckpointError: a checkpoint could not be written, or all are damaged.
    """
    mesh = make_mesh(config, text.vocab_size)
    with jax.set_mesh(mesh):
        return _train_on(mesh, config, workdir, text, mixture)


def _train_on(
    mesh: jax.sharding.Mesh, config: Config, workdir: Path, text: TrainingText, mixture: Mixture
) -> Outcome:
    every, num_steps = config.bandit.every_steps, config.train.num_steps
    rows = row_settings(config)
    validation = validation_batches(
        text.validation,
        mixture.arms,
        rows._replace(rows=config.eval.rows),
        config.eval.batches_per_arm,
    )

    programs = make_programs(config, text.vocab_size, mixture, mesh)
    checkpoints = Checkpoints(workdir, config.checkpoint)
    positions = first_positions(rows.rows, rows.lookahead)
    restored = checkpoints.restore(programs.abstract_state, positions)
    state, positions = restored or (programs.create_state(), positions)
    first_step = int(state.step)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))

    board = MixtureBoard(len(mixture.arms), num_steps // every + 1)
    # Decisions before the first step are past: what stands in their place is never read.
    past = num_steps // every + 1 if config.bandit.policy != "birdie" else -(-first_step // every)
    for _ in range(past):
        board.publish(np.asarray(state.bandit.mixture))
    streams = RowStreams(
        text.train,
        mixture.arms,
        rows,
        board,
        first_step=first_step,
        every_steps=every,
        positions=positions,
    )
    batches = iter(prefetched(streams, workers=config.batching.workers, prefetch=config.batching.prefetch))

    learning_rate = learning_rate_schedule(config.optimizer, num_steps)
    validates_again = first_step % every == 0 and first_step < num_steps
    file = MetricsFile(workdir, first_step, validates_again)
    log = StepLog(
        mixture.names,
        config.train.log_every_steps,
        rows.rows * rows.length,
        int(file.kept.get("tokens_seen", 0)),
    )
    progress = Progress(num_steps, first_step, parameters)

    def write(summary: dict[str, float] | None) -> None:
        if summary is not None:
            step = int(summary.pop("step"))
            summary["learning_rate"] = float(learning_rate(step - 1))
            file.write(step, summary)
            progress.show(step, summary)

    def validate(state: TrainState, step: int) -> TrainState:
        """Measure every arm on its fixed batches; let the bandit see it and, if steps follow, decide."""
        begin = time.monotonic()
        sums = [_validate_arm(programs.validation_step, state.params, batches) for batches in validation]
        losses = jnp.stack([one.loss[arm] / one.tokens[arm] for arm, one in enumerate(sums)])
        accuracies = jnp.stack([one.correct[arm] / one.tokens[arm] for arm, one in enumerate(sums)])
        with on_every_device_alike():
            state = state.replace(bandit=observe(state.bandit, losses))
            if step < num_steps:
                state = state.replace(bandit=propose(state.bandit))
        if step < num_steps and config.bandit.policy == "birdie":
            board.publish(np.asarray(state.bandit.mixture))
        file.write(step, _validation_scalars(mixture.names, state.bandit, losses, accuracies))
        log.exclude(time.monotonic() - begin)
        return state

    def save(state: TrainState, made: MadeBatch, step: int) -> None:
        # What is saved has been seen to be finite.
        write(log.flush())
        checkpoints.save(state, made.positions, step)

    step = saved = first_step
    with StopRequest() as stop, progress:
        try:
            while step < num_steps and stop.signal is None:
                if step % every == 0:
                    write(log.flush())
                    state = validate(state, step)
                waiting = time.monotonic()
                made = next(batches)
                host_wait = time.monotonic() - waiting
                state, metrics = programs.train_step(state, jax.device_put(made.batch, of_batch(mesh)))
                step += 1
                # Reads the step before: the device already has this one to work on.
                write(log.add(step, metrics, host_wait))
                if step == num_steps:
                    write(log.flush())
                    state = validate(state, step)
                if step % config.checkpoint.every_steps == 0 or step == num_steps:
                    save(state, made, step)
                    saved = step
                checkpoints.check()
            if step > saved:
                save(state, made, step)
            checkpoints.wait()
        except (TrainingDiverged, NotFinite) as diverged:
            if isinstance(diverged, NotFinite):
                diverged = f"step {step}: the update made a parameter NaN or infinite"
            checkpoints.wait()
            good = checkpoints.last_good
            kept = "there is no checkpoint" if good is None else f"{checkpoints.directory} step {good}"
            raise TrainingDiverged(f"{diverged}; last good checkpoint: {kept}") from None
        finally:
            # First the board: makers of batches may be waiting for a mixture that will not come.
            board.close()
            batches.close()
            file.close()
            checkpoints.close()
    return Outcome(step, step == num_steps, stop.signal and stop.signal.name, parameters)


def row_settings(config: Config) -> RowSettings:
    """Return what the rows of training batches share."""
    batching = config.batching
    return RowSettings(config.seed, batching.rows, batching.length, batching.spacing, batching.lookahead)


def _validate_arm(function: Callable[..., ArmSums], params: Any, batches: list[Batch]) -> ArmSums:
    parts = [function(params, batch) for batch in batches]
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *parts)


def _validation_scalars(
    names: Sequence[str], bandit: BanditState, losses: ArmVector, accuracies: ArmVector
) -> dict[str, float]:
    """Return what was measured, the mixture in force from now on, and what the one before it earned."""
    bandit, losses, accuracies = jax.device_get((bandit, losses, accuracies))
    scalars = {}
    for arm, name in enumerate(names):
        scalars[f"arm/{name}/validation_loss"] = float(losses[arm])
        scalars[f"arm/{name}/validation_accuracy"] = float(accuracies[arm])
        scalars[f"arm/{name}/probability"] = float(bandit.mixture[arm])
        if bandit.count > 1:
            scalars[f"arm/{name}/reward"] = float(bandit.rewards[bandit.count - 2][arm])
    return scalars
