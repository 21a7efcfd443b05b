"""The train loop: run a step on batches, from the newest checkpoint to the last step."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import NamedTuple

import jax
import numpy as np
from absl import logging
from etils import epath
from jaxtyping import PyTree

from birdie_jax.config_sections import CheckpointConfig
from birdie_jax.config_types import Steps
from birdie_jax.engine.branch import Branch
from birdie_jax.engine.checkpoint import Checkpoints, Restored
from birdie_jax.engine.checkpoint_format import step_folder
from birdie_jax.engine.checks import (
    check_batch,
    check_parts,
    check_position,
    check_same_arrays,
    check_state,
    check_workdir,
    kind_of,
)
from birdie_jax.engine.chips import chip_of
from birdie_jax.engine.coordination import Processes
from birdie_jax.engine.hook_runner import HookRunner
from birdie_jax.engine.lease import Lease
from birdie_jax.engine.metrics_file import STEP_LINE_KEY, MetricsFile
from birdie_jax.engine.protocols import (
    Batches,
    GrowingHook,
    Hook,
    IdentifiedBatches,
    Position,
    Step,
)
from birdie_jax.engine.step_log import BadStepsInARow, OpenWindow, Progress, StepLog
from birdie_jax.engine.stop import SharedStop, StopRequest, silence_repeated_errors
from birdie_jax.engine.time_use import TimeUse
from birdie_jax.engine.trackers.sending import OnScalars
from birdie_jax.engine.watch import Limits, Watch
from birdie_jax.errors import ConfigError, NotFinite, TrainingDiverged
from birdie_jax.storage import parse_typed, remove, to_plain
from birdie_jax.storage.workdir import Workdir


class Outcome(NamedTuple):
    """The result of training.

    Attributes:
        step: the last completed step.
        num_steps: the last step of the run, as planned or because a hook ended it.
        stopped_by: the name of the signal that stopped the run before its last step, or None.
        parameters: the number of parameters of the model.
    """

    step: int
    num_steps: int
    stopped_by: str | None
    parameters: int

    @property
    def completed(self) -> bool:
        """Whether the run has reached its last step."""
        return self.step == self.num_steps


def train(
    step: Step,
    batches: Batches[Position],
    hooks: Sequence[Hook] = (),
    *,
    workdir: Workdir | epath.PathLike,
    num_steps: int,
    log_every_steps: int = 10,
    checkpoint: CheckpointConfig | None = None,
    watch: Watch | None = None,
    lease: Lease | None = None,
    branch: Branch | None = None,
    flops_per_token: float | None = None,
    on_scalars: OnScalars | None = None,
) -> Outcome:
    """Train from the newest whole checkpoint until `num_steps`, or until a signal stops the run.

    All processes call this; the first of them writes the metrics.

    Args:
        step: the train step.
        batches: the data, one batch for each step to `num_steps`; closed at the end.
        hooks: the hooks between steps, called in this order if several are due; `step` must have their
            sections.
        workdir: the folder of the run: its checkpoints and metrics; a path, or gs://BUCKET/...
        num_steps: the number of train steps of the whole run, 1 or more; at least the step of the newest
            checkpoint. A larger number extends a run, and removes the summary of its earlier end.
        log_every_steps: the number of steps between two lines of metrics, 1 or more. Steps after the last
            multiple are not logged.
        checkpoint: how often checkpoints are saved, and how many are kept; None: the defaults.
        watch: detects processes that are lost or hang; must be entered. None for a single process.
        lease: the lease on the workdir; None: this function takes it.
        branch: the start of a run without a checkpoint; None: step 0.
        flops_per_token: the model's FLOPs per token of a train step, for MFU; None: MFU is not logged.
        on_scalars: called in the first process with each step and its logged scalars.

    Raises:
        ConfigError: an argument is invalid, or the step was made for other hooks; a hook changes the shape
            or type of an array of the state, or logs a name that the loop or another hook logs; a batch is
            empty, or the batches end early.
        WorkdirInUse: another trainer holds the workdir.
        TrainingDiverged: there were too many bad steps in a row (`make_step`), or a hook measured NaN or
            infinity. Other metrics that are not finite are omitted from `metrics.jsonl`, with one warning.
        CheckpointError: a checkpoint could not be written or read, or all are damaged.
        LeaseLost: another trainer has taken the workdir, or it is gone.
    """
    cadence = _Cadence(
        parse_typed(Steps, num_steps, "num_steps", ConfigError),
        parse_typed(Steps, log_every_steps, "log_every_steps", ConfigError),
        _parse_checkpoint(checkpoint or CheckpointConfig()),
    )
    if not isinstance(workdir, Workdir):
        check_workdir(os.fspath(workdir))
        workdir = Workdir(workdir)
    check_workdir(str(workdir))
    check_parts(step, batches, hooks)
    with ExitStack() as held:
        held.enter_context(jax.set_mesh(step.mesh))
        if lease is None and jax.process_index() == 0:
            workdir.make()
            lease = held.enter_context(Lease(workdir))
        if watch is None:
            watch = Watch(Processes(), Limits(30, 600), workdir, ())
        time_use = held.enter_context(TimeUse(watch.began))
        mfu_of = _mfu_of(step.mesh, flops_per_token)
        gauges = _Gauges(time_use, mfu_of, on_scalars)
        return _train(step, batches, hooks, workdir, cadence, _Guards(watch, lease), branch, gauges)


class _Cadence(NamedTuple):
    """The number of steps, and the intervals of logs and checkpoints."""

    num_steps: int
    log_every_steps: int
    checkpoint: CheckpointConfig


def _parse_checkpoint(config: CheckpointConfig) -> CheckpointConfig:
    return parse_typed(CheckpointConfig, to_plain(config), "checkpoint", ConfigError)


class _Guards(NamedTuple):
    """The guards that end a run."""

    watch: Watch
    lease: Lease | None


class _Gauges(NamedTuple):
    """The measurements of the run itself."""

    time_use: TimeUse
    mfu_of: Callable[[float], float] | None
    on_scalars: OnScalars | None


def _mfu_of(mesh: jax.sharding.Mesh, flops_per_token: float | None) -> Callable[[float], float] | None:
    """Return a function: tokens per second -> share of the devices' bfloat16 peak; None if unknown."""
    chip = chip_of(mesh.devices.flat[0].device_kind)
    if chip is None or flops_per_token is None:
        return None
    share = flops_per_token / (chip.peak_flops * mesh.devices.size)
    return lambda tokens_per_second: share * tokens_per_second


def _train(  # noqa: PLR0917
    step: Step,
    batches: Batches[Position],
    hooks: Sequence[Hook],
    workdir: Workdir,
    cadence: _Cadence,
    guards: _Guards,
    branch: Branch | None,
    gauges: _Gauges,
) -> Outcome:
    num_steps, watch, time_use = cadence.num_steps, guards.watch, gauges.time_use
    data = data_identity(batches)
    stop = StopRequest()
    shared_stop = SharedStop(step.mesh, stop)
    runner = HookRunner(hooks, num_steps, watch, shared_stop, step.abstract_state)
    with ExitStack() as opened:
        # Entered first and exited last, so a signal does not interrupt the cleanup of the rest.
        opened.enter_context(stop)
        opened.enter_context(silence_repeated_errors())
        checkpoints = opened.enter_context(closing(Checkpoints(workdir, cadence.checkpoint)))
        opened.enter_context(closing(batches))
        first_position = check_position(batches.first_position())
        start = restore_or_create(step, first_position, checkpoints, data, hooks=hooks, branch=branch)
        state = start.state
        first_step = done = saved = int(state.step)
        if done > num_steps:
            raise ConfigError(
                f"num_steps: found {num_steps}; allowed: at least {done}, the newest checkpoint's step in "
                f"{checkpoints.directory}"
            )
        branches = branch is not None and checkpoints.last_good is None
        if branches and done == num_steps:
            raise ConfigError(
                f"num_steps: found {num_steps}; allowed: more than {done}, the step where the run branches"
            )
        batches.restore(start.position, state)
        position: Position | None = None
        opened.enter_context(closing(runner))
        runner.resume(state)
        parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        again = first_step < num_steps and runner.any_due(first_step)
        if branch is not None and branches and watch.processes.first:
            branch.copy_metrics(workdir)

            def take_back() -> None:
                # A branch that ends before its first step leaves the workdir free for another run.
                if done == first_step and done < runner.num_steps:
                    remove(workdir.metrics)

            opened.callback(take_back)
        file = MetricsFile(
            workdir, first_step, again, writes=watch.processes.first, on_scalars=gauges.on_scalars
        )
        opened.enter_context(closing(file))
        if first_step < num_steps and watch.processes.first:
            # The summary of an earlier end would mark a longer run as complete while it trains.
            remove(workdir.summary)
        window = OpenWindow(int(file.kept.get("tokens_seen", 0)))
        if start.window is not None:
            window = OpenWindow.from_json(start.window)
        if not branches:
            time_use.resume(file.kept, file.last)
        log = StepLog(step.summarise, cadence.log_every_steps, window, gauges.mfu_of)
        progress = Progress(num_steps, first_step, parameters, shown=watch.processes.first)
        opened.enter_context(progress)
        stopped_by: signal.Signals | None = None
        # A batch with other shapes than the one before may need a compilation.
        before: list[tuple[int, ...]] | None = None

        def write(summary: dict[str, float] | None) -> None:
            if summary is not None:
                hosts = watch.compare_hosts(log.host_seconds, summary[STEP_LINE_KEY])
                write_summary(summary | time_use.scalars() | hosts, file, progress)

        def save() -> None:
            # This raises if the last step diverged, before its state is saved.
            write(log.flush())
            watch.heartbeat(done, "saving", compiles=saved == first_step)
            file.flush()
            assert position is not None  # at least one step has run
            gathered = batches.gather(position)
            check_same_arrays("batches: their position", gathered, first_position)
            checkpoints.save(state, gathered, done, data, log.window.to_json())

        time_use.first_step_begins()
        try:
            while done < num_steps and stopped_by is None:
                if runner.any_due(done):
                    write(log.flush())
                    with time_use.spent_on("hooks"):
                        result = runner.run(state, done, file, log)
                    if result is None:
                        stopped_by = shared_stop.answer
                        break
                    if done == runner.num_steps:
                        # A hook ended the run. Save the state from before the hook, because a restarted
                        # process calls the hook again.
                        break
                    state = result
                watch.heartbeat(done + 1, "waiting for its batch")
                waiting = time.monotonic()
                with time_use.spent_on("waiting_for_data"):
                    batch, position = next_batch(batches, done, num_steps)
                host_wait = time.monotonic() - waiting
                shapes = [np.shape(leaf) for leaf in jax.tree.leaves(batch)]
                if shapes != before:
                    check_batch(batch, done + 1)
                watch.heartbeat(done + 1, "computing", compiles=shapes != before)
                before = shapes
                with jax.profiler.StepTraceAnnotation("train", step_num=done + 1):
                    state, metrics = step(state, batch)
                if done == first_step:
                    check_state("step", state, step.abstract_state)
                done += 1
                # This reads the metrics of the previous step, while the device computes the current one.
                write(log.add(done, metrics, host_wait))
                if done == num_steps and runner.any_due(done):
                    write(log.flush())
                    with time_use.spent_on("hooks"):
                        state = runner.run(state, done, file, log) or state
                if done % cadence.checkpoint.every_steps == 0 or done == num_steps:
                    with time_use.spent_on("checkpoints"):
                        save()
                    saved = done
                checkpoints.check()
                if guards.lease is not None:
                    guards.lease.check()
                stopped_by = shared_stop.ask()
            with time_use.spent_on("checkpoints"):
                if position is not None and done > saved:
                    save()
                watch.heartbeat(done, "waiting for its checkpoint to be written")
                checkpoints.wait()
            file.finish()
        except (TrainingDiverged, NotFinite) as diverged:
            raise _explained(diverged, done, checkpoints) from None
    watch.disarm()
    if done == runner.num_steps:
        stopped_by = None
    return Outcome(done, runner.num_steps, stopped_by.name if stopped_by else None, parameters)


def restore_or_create(
    step: Step,
    first_position: PyTree[np.ndarray],
    checkpoints: Checkpoints,
    data: str | None,
    *,
    hooks: Sequence[Hook] = (),
    branch: Branch | None = None,
) -> Restored:
    """Return the contents of the newest whole checkpoint, else those of a branch, else a new state."""
    growing = {
        f"{hook.name}/{name}" for hook in hooks if isinstance(hook, GrowingHook) for name in hook.growing
    }
    wanted = step.abstract_state, first_position, step.create_sections, data, growing
    restored, folder = checkpoints.restore(*wanted), checkpoints.directory
    if restored is None and branch is not None:
        restored, folder = branch.read(*wanted), branch.folder.parent
    if restored is None:
        return Restored(step.create_state(), first_position, (), (), None)
    folder /= step_folder(int(restored.state.step))
    for name in restored.filled:
        logging.warning("%s: %s is newer than the run; it starts anew", folder, name)
    for name in restored.unused:
        logging.warning("%s: unknown section %s; ignored", folder, name)
    return restored


def next_batch(batches: Batches[Position], done: int, num_steps: int) -> tuple[PyTree[jax.Array], Position]:
    """Return the next batch and the position after it.

    Raises:
        ConfigError: the batches end early, or do not return a batch and a position.
    """
    try:
        given = next(batches)
    except StopIteration:
        raise ConfigError(
            f"batches: found their end after step {done}; allowed: one for each of num_steps={num_steps}"
        ) from None
    if not isinstance(given, tuple) or len(given) != 2:
        raise ConfigError(
            f"batches: found {kind_of(given)}; allowed: a tuple of a batch and the position after it"
        )
    return given


def data_identity(batches: Batches[Position]) -> str | None:
    """Return the identity of the batches' data, or None if they have none."""
    return batches.identity if isinstance(batches, IdentifiedBatches) else None


def write_summary(summary: dict[str, float], file: MetricsFile, progress: Progress) -> None:
    """Write a summary to the file of metrics, and show it."""
    step = int(summary.pop("step"))
    file.write(step, summary)
    progress.show(step, summary)


def _explained(diverged: Exception, step: int, checkpoints: Checkpoints) -> TrainingDiverged:
    """Return the error of a diverged run; the message names the last good checkpoint."""
    what = str(diverged)
    if isinstance(diverged, NotFinite):
        what = f"step {step}: a parameter became NaN or infinite"
    checkpoints.wait()
    good = checkpoints.last_good
    if isinstance(diverged, BadStepsInARow):
        what += diverged.advice(good or 0)
    kept = "there is no checkpoint" if good is None else f"{checkpoints.directory} step {good}"
    return TrainingDiverged(f"{what}; last good checkpoint: {kept}")
