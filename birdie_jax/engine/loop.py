"""The train loop: any step on any batches, from the newest checkpoint to the last step."""

import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import NamedTuple

import jax
import numpy as np
from absl import logging
from jaxtyping import PyTree

from birdie_jax.config_sections import CheckpointConfig
from birdie_jax.engine.checkpoint import Checkpoints
from birdie_jax.engine.coordination import Processes
from birdie_jax.engine.lease import Lease
from birdie_jax.engine.metrics_file import MetricsFile
from birdie_jax.engine.protocols import Batches, Hook, HookCall, IdentifiedBatches, Position, Step
from birdie_jax.engine.state import TrainState
from birdie_jax.engine.step_log import Progress, StepLog
from birdie_jax.engine.stop import SharedStop, StopRequest, told_once
from birdie_jax.engine.watch import Limits, Watch
from birdie_jax.errors import NotFinite, TrainingDiverged
from birdie_jax.storage.workdir import Workdir


class HookRunner:
    """Runs the hooks that are due, one after another, and logs what they measured."""

    def __init__(self, hooks: Sequence[Hook], num_steps: int, watch: Watch, stop: SharedStop):
        """Take the hooks of a run of `num_steps`.

        Raises:
            ValueError: two hooks have the same name.
        """
        names = [hook.name for hook in hooks]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"hooks: {name!r} is the name of {names.count(name)}; allowed: one each")
        self._hooks = hooks
        self._num_steps = num_steps
        self._watch = watch
        self._stop = stop
        self._called: set[str] = set()

    def resume(self, state: TrainState) -> None:
        """Let every hook get ready for the steps from `state.step` on."""
        for hook in self._hooks:
            hook.resume(state)

    def any_due(self, step: int) -> bool:
        """Tell whether a hook is due at `step`."""
        return any(hook.is_due(step, self._num_steps) for hook in self._hooks)

    def run(self, state: TrainState, step: int, file: MetricsFile, log: StepLog) -> TrainState | None:
        """Run every hook that is due at `step`; None if the run was asked to stop before all were done."""
        for hook in self._hooks:
            if not hook.is_due(step, self._num_steps):
                continue
            begin = time.monotonic()
            result = hook.run(state, self._call(hook, step))
            if result is None:
                if self._stop.answer is None:
                    raise RuntimeError(
                        f"hook {hook.name!r} has returned None, and the run was not asked to stop; "
                        "allowed: a HookResult"
                    )
                return None
            state = result.state
            if result.scalars:
                file.write(step, result.scalars)
            log.exclude(time.monotonic() - begin)
        return state

    def close(self) -> None:
        """Let every hook release what it holds."""
        for hook in self._hooks:
            hook.close()

    def _call(self, hook: Hook, step: int) -> HookCall:
        is_first = hook.name not in self._called
        self._called.add(hook.name)

        def heartbeat(phase: str) -> None:
            self._watch.heartbeat(step, f"{hook.name}, {phase}", compiles=is_first)

        def should_stop() -> bool:
            # At the end there is nothing left to stop.
            return step < self._num_steps and bool(self._stop.ask())

        return HookCall(step, self._num_steps, is_first, heartbeat, should_stop)


class Outcome(NamedTuple):
    """How training ended.

    Attributes:
        step: the last step that was done.
        completed: whether that is the last step of the run.
        stopped_by: the name of the signal that asked for the end, or None.
        parameters: the number of parameters of the model.
    """

    step: int
    completed: bool
    stopped_by: str | None
    parameters: int


def train(
    step: Step,
    batches: Batches[Position],
    hooks: Sequence[Hook] = (),
    *,
    workdir: Workdir,
    num_steps: int,
    log_every_steps: int = 10,
    checkpoint: CheckpointConfig | None = None,
    watch: Watch | None = None,
    lease: Lease | None = None,
) -> Outcome:
    """Train until `num_steps`, or until asked to stop, from the newest whole checkpoint on.

    Of several processes, all call this; the first of them writes the metrics.

    Args:
        step: what a batch does to the state.
        batches: what it is trained on; closed at the end.
        hooks: what is done between steps, in this order where several are due.
        workdir: the folder of the run: its checkpoints and metrics.
        num_steps: the number of train steps of the whole run.
        log_every_steps: the number of steps between two lines of metrics.
        checkpoint: how often checkpoints are saved, and how many are kept; None: the defaults.
        watch: notices processes that are lost or hang; has been entered. None where there is one process.
        lease: held on the workdir; None: it is taken here.

    Raises:
        ConfigError: another trainer holds the workdir.
        TrainingDiverged: the loss, or what a hook measures, became NaN or infinite.
        CheckpointError: a checkpoint could not be written or read, or all are damaged.
        LeaseLost: another trainer has taken the workdir, or it is gone.
    """
    with ExitStack() as held:
        held.enter_context(jax.set_mesh(step.mesh))
        if lease is None and jax.process_index() == 0:
            workdir.make()
            lease = held.enter_context(Lease(workdir))
        if watch is None:
            watch = Watch(Processes(), Limits(30, 600), workdir, ())
        cadence = _Cadence(num_steps, log_every_steps, checkpoint or CheckpointConfig())
        return _train(step, batches, hooks, workdir, cadence, _Guards(watch, lease))


class _Cadence(NamedTuple):
    """How many steps there are, and how often something is done."""

    num_steps: int
    log_every_steps: int
    checkpoint: CheckpointConfig


class _Guards(NamedTuple):
    """What keeps a run from going on when it should not."""

    watch: Watch
    lease: Lease | None


def _train(  # noqa: PLR0917
    step: Step,
    batches: Batches[Position],
    hooks: Sequence[Hook],
    workdir: Workdir,
    cadence: _Cadence,
    guards: _Guards,
) -> Outcome:
    num_steps, watch = cadence.num_steps, guards.watch
    data = data_identity(batches)
    stop = StopRequest()
    shared_stop = SharedStop(step.mesh, stop)
    runner = HookRunner(hooks, num_steps, watch, shared_stop)
    with ExitStack() as opened:
        # First, and so left last: a signal while the rest is closed must not cut that short.
        opened.enter_context(stop)
        opened.enter_context(told_once())
        checkpoints = opened.enter_context(closing(Checkpoints(workdir, cadence.checkpoint)))
        opened.enter_context(closing(batches))
        state, saved_position = restore_or_create(step, batches, checkpoints)
        first_step = done = saved = int(state.step)
        batches.restore(saved_position, state)
        position: Position | None = None
        opened.enter_context(closing(runner))
        runner.resume(state)
        parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        again = first_step < num_steps and runner.any_due(first_step)
        file = MetricsFile(workdir, first_step, again, writes=watch.processes.first)
        opened.enter_context(closing(file))
        log = StepLog(step.summarise, cadence.log_every_steps, int(file.kept.get("tokens_seen", 0)))
        progress = Progress(num_steps, first_step, parameters, shown=watch.processes.first)
        opened.enter_context(progress)
        stopped_by: signal.Signals | None = None
        # A batch of other shapes than the one before may have to be compiled for.
        before: list[tuple[int, ...]] | None = None
        try:
            while done < num_steps and stopped_by is None:
                if runner.any_due(done):
                    write_summary(log.flush(), file, progress)
                    result = runner.run(state, done, file, log)
                    if result is None:
                        stopped_by = shared_stop.answer
                        break
                    state = result
                watch.heartbeat(done + 1, "waiting for its batch")
                waiting = time.monotonic()
                batch, position = next(batches)
                host_wait = time.monotonic() - waiting
                shapes = [leaf.shape for leaf in jax.tree.leaves(batch)]
                watch.heartbeat(done + 1, "computing", compiles=shapes != before)
                before = shapes
                state, metrics = step(state, batch)
                done += 1
                # Reads the step before: the device already has this one to work on.
                write_summary(log.add(done, metrics, host_wait), file, progress)
                if done == num_steps and runner.any_due(done):
                    write_summary(log.flush(), file, progress)
                    state = runner.run(state, done, file, log) or state
                if done % cadence.checkpoint.every_steps == 0 or done == num_steps:
                    # What is saved has been seen to be finite.
                    write_summary(log.flush(), file, progress)
                    watch.heartbeat(done, "saving", compiles=saved == first_step)
                    file.flush()
                    checkpoints.save(state, batches.gather(position), done, data)
                    saved = done
                checkpoints.check()
                if guards.lease is not None:
                    guards.lease.check()
                stopped_by = shared_stop.ask()
            if position is not None and done > saved:
                write_summary(log.flush(), file, progress)
                watch.heartbeat(done, "saving", compiles=saved == first_step)
                file.flush()
                checkpoints.save(state, batches.gather(position), done, data)
            watch.heartbeat(done, "waiting for its checkpoint to be written")
            checkpoints.wait()
            file.finish()
        except (TrainingDiverged, NotFinite) as diverged:
            raise _explained(diverged, done, checkpoints) from None
    watch.disarm()
    return Outcome(done, done == num_steps, stopped_by.name if stopped_by else None, parameters)


def restore_or_create(
    step: Step, batches: Batches[Position], checkpoints: Checkpoints
) -> tuple[TrainState, PyTree[np.ndarray]]:
    """Return state and position of the newest whole checkpoint, or those before the first step."""
    first_position = batches.first_position()
    data = data_identity(batches)
    restored = checkpoints.restore(step.abstract_state, first_position, step.create_sections, data)
    if restored is None:
        return step.create_state(), first_position
    for name in restored.filled:
        logging.warning("%s: %s is newer than the run; it starts anew", checkpoints.directory, name)
    for name in restored.unused:
        logging.warning("%s: %s is known no more, and left out", checkpoints.directory, name)
    return restored.state, restored.position


def data_identity(batches: Batches[Position]) -> str | None:
    """Return the identity of the data that batches are made of, or None where they have none."""
    return batches.identity if isinstance(batches, IdentifiedBatches) else None


def write_summary(summary: dict[str, float] | None, file: MetricsFile, progress: Progress) -> None:
    """Write what was summed up, if anything was, and show it."""
    if summary is not None:
        step = int(summary.pop("step"))
        file.write(step, summary)
        progress.show(step, summary)


def _explained(diverged: Exception, step: int, checkpoints: Checkpoints) -> TrainingDiverged:
    """Return the end of a run that diverged, with what is left of it."""
    what = str(diverged)
    if isinstance(diverged, NotFinite):
        what = f"step {step}: the update made a parameter NaN or infinite"
    checkpoints.wait()
    good = checkpoints.last_good
    kept = "there is no checkpoint" if good is None else f"{checkpoints.directory} step {good}"
    return TrainingDiverged(f"{what}; last good checkpoint: {kept}")
