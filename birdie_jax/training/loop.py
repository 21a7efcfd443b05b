"""The train loop, from a configuration and prepared text to a finished run."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from birdie_jax.array_types import ArmVector
from birdie_jax.bandit import BanditState, find_policy, observe, propose
from birdie_jax.batching import (
    BatchWithState,
    DecisionSchedule,
    MixtureHistory,
    RowSettings,
    RowStreams,
    initial_stream_states,
    prefetch_batches,
    split_into_chunks,
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
from birdie_jax.training.rows import RowsHere
from birdie_jax.training.sharding import make_mesh, on_every_device_alike
from birdie_jax.training.step import TrainState
from birdie_jax.training.stop import SharedStop, StopRequest
from birdie_jax.training.watch import Watch


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


def train(
    config: Config,
    workdir: Path,
    text: TrainingText,
    mixture: Mixture,
    watch: Watch,
) -> Outcome:
    """Train until `config.train.num_steps`, or until asked to stop, from the newest whole checkpoint on.

    Of several processes, all call this; the first of them writes the metrics.

    Raises:
        ConfigError: batch or model cannot be divided among the devices.
        DataError: the text cannot make the examples that the mixture asks for.
        TrainingDiverged: the loss became NaN or infinite.
        CheckpointError: a checkpoint could not be written, or all are damaged.
    """
    with jax.set_mesh(make_mesh(config, text.vocab_size)):
        return _train_on_mesh(config, workdir, text, mixture, watch)


def _train_on_mesh(
    config: Config, workdir: Path, text: TrainingText, mixture: Mixture, watch: Watch
) -> Outcome:
    mesh = jax.sharding.get_mesh()
    num_steps = config.train.num_steps
    schedule = DecisionSchedule(config.bandit.every_steps, num_steps)
    decides = find_policy(config.bandit.policy).changes_mixture
    rows = row_settings(config)
    rows_here = RowsHere(config, mesh)
    validation = split_into_chunks(
        validation_batches(
            text.validation,
            mixture.arms,
            rows._replace(rows=config.eval.rows),
            config.eval.batches_per_arm,
        ),
        rows.rows // config.train.accumulation_steps,
    )

    programs = make_programs(config, text.vocab_size, mixture, mesh)
    checkpoints = Checkpoints(workdir, config.checkpoint)
    positions = initial_stream_states(rows.rows, rows.lookahead)
    restored = checkpoints.restore(programs.abstract_state, positions)
    state = restored.state if restored else programs.create_state()
    positions = rows_here.own(restored.positions if restored else positions)
    first_step = int(state.step)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))

    board = MixtureHistory(len(mixture.arms), schedule.num_mixtures)
    # Decisions before the first step are past: what stands in their place is never read.
    past = schedule.taken_before(first_step) if decides else schedule.num_mixtures
    for _ in range(past):
        board.publish(np.asarray(state.bandit.mixture))
    streams = RowStreams(
        text.train,
        mixture.arms,
        rows,
        board,
        first_step=first_step,
        schedule=schedule,
        stream_states=positions,
        rows=rows_here.numbers,
    )
    batches = iter(
        prefetch_batches(streams, workers=config.batching.workers, prefetch=config.batching.prefetch)
    )

    learning_rate = learning_rate_schedule(config.optimizer, num_steps)
    validates_again = schedule.is_due(first_step)
    file = MetricsFile(workdir, first_step, validates_again, writes=watch.processes.first)
    log = StepLog(
        mixture.names,
        config.train.log_every_steps,
        rows.rows * rows.length,
        int(file.kept.get("tokens_seen", 0)),
    )
    progress = Progress(num_steps, first_step, parameters, shown=watch.processes.first)
    stop = StopRequest()
    shared_stop = SharedStop(mesh, stop)

    def write(summary: dict[str, float] | None) -> None:
        if summary is not None:
            step = int(summary.pop("step"))
            summary["learning_rate"] = float(learning_rate(step - 1))
            file.write(step, summary)
            progress.show(step, summary)

    def validate(state: TrainState, step: int) -> TrainState | None:
        """Measure every arm on its fixed rows; let the bandit see it and, if steps follow, decide.

        Returns:
            The new state, or None if the run was asked to stop before all was measured.
        """
        begin = time.monotonic()
        sums = None
        for number, chunk in enumerate(validation):
            doing = f"validation, part {number + 1} of {len(validation)}"
            watch.come_by(step, doing, first_time=step == first_step)
            part = programs.validation_step(state.params, rows_here.put_whole(chunk))
            sums = part if sums is None else jax.tree.map(jnp.add, sums, part)
            if step < num_steps and shared_stop.ask():
                return None
        losses, accuracies = sums.loss / sums.tokens, sums.correct / sums.tokens
        with on_every_device_alike():
            state = state.replace(bandit=observe(state.bandit, losses))
            if step < num_steps:
                state = state.replace(bandit=propose(state.bandit))
        if step < num_steps and decides:
            board.publish(np.asarray(state.bandit.mixture))
        file.write(step, _validation_scalars(mixture.names, state.bandit, losses, accuracies))
        log.exclude(time.monotonic() - begin)
        return state

    def save(state: TrainState, made: BatchWithState, step: int) -> None:
        # What is saved has been seen to be finite.
        write(log.flush())
        watch.come_by(step, "saving", first_time=saved == first_step)
        checkpoints.save(state, rows_here.gather(made.stream_states), step)

    step = saved = first_step
    stopped_by = None
    with stop, progress:
        try:
            while step < num_steps and stopped_by is None:
                if schedule.is_due(step):
                    write(log.flush())
                    validated = validate(state, step)
                    if validated is None:
                        stopped_by = shared_stop.answer
                        break
                    state = validated
                watch.come_by(step + 1, "waiting for its batch")
                waiting = time.monotonic()
                made = next(batches)
                host_wait = time.monotonic() - waiting
                watch.come_by(step + 1, "computing", first_time=step == first_step)
                state, metrics = programs.train_step(state, rows_here.put(made.batch))
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
                stopped_by = shared_stop.ask()
            if step > saved:
                save(state, made, step)
            watch.come_by(step, "waiting for its checkpoint to be written")
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
    watch.leave_loop()
    return Outcome(step, step == num_steps, stopped_by and stopped_by.name, parameters)


def row_settings(config: Config) -> RowSettings:
    """Return what the rows of training batches share."""
    batching = config.batching
    return RowSettings(config.seed, batching.rows, batching.length, batching.spacing, batching.lookahead)


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
