"""A hook that records what the devices do in a few train steps, for TensorBoard's profile plugin."""

import tempfile
from pathlib import Path

import jax
from jaxtyping import PyTree

from birdie_jax.array_types import Key
from birdie_jax.engine.protocols import HookCall, HookResult
from birdie_jax.engine.state import TrainState
from birdie_jax.storage import is_remote, upload
from birdie_jax.storage.workdir import Workdir

# Compilation and the first steps, which are not what is looked for.
_SKIPPED_STEPS = 5
_TRACED_STEPS = 3


class ProfilerTrace:
    """Traces three train steps, from the sixth on that this process does, into the folder `tensorboard`.

    The profiler writes to disks alone; for a bucket the trace is written here first.

    Attributes:
        name: the name of the hook.
    """

    name = "profiler_trace"

    def __init__(self, workdir: Workdir):
        """Write into the TensorBoard folder of `workdir`."""
        self._folder = workdir.tensorboard
        self._first_step = 0
        self._is_tracing = False
        self._spool: tempfile.TemporaryDirectory | None = None

    def create_section(self, key: Key) -> PyTree:
        """Return nothing: the hook keeps no arrays."""
        del key
        return {}

    def resume(self, state: TrainState) -> None:
        """Count the steps from here."""
        self._first_step = int(state.step) + _SKIPPED_STEPS

    def is_due(self, step: int, num_steps: int) -> bool:
        """Whether the trace begins or ends at `step`."""
        begin = self._first_step
        return begin + _TRACED_STEPS <= num_steps and step in (begin, begin + _TRACED_STEPS)

    def run(self, state: TrainState, call: HookCall) -> HookResult:
        """Begin or end the trace, with no step under way."""
        jax.block_until_ready(state.params)
        if call.step == self._first_step:
            if is_remote(self._folder):
                self._spool = tempfile.TemporaryDirectory(prefix="birdie_jax-trace-")
            jax.profiler.start_trace(self._spool.name if self._spool else str(self._folder))
            self._is_tracing = True
        else:
            self.close()
        return HookResult(state, {})

    def close(self) -> None:
        """End a trace that is under way, as where the run was stopped within it.

        Raises:
            OSError: the store refuses the trace.
        """
        if self._is_tracing:
            self._is_tracing = False
            jax.profiler.stop_trace()
        if self._spool is not None:
            with self._spool as spool:
                self._spool = None
                for file in sorted(Path(spool).rglob("*")):
                    if file.is_file():
                        upload(file, self._folder / file.relative_to(spool).as_posix())
