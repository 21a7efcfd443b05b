"""A hook that records what the devices do in a few train steps, for TensorBoard's profile plugin."""

import jax
from jaxtyping import PyTree

from birdie_jax.array_types import Key
from birdie_jax.engine.protocols import HookCall, HookResult
from birdie_jax.engine.state import TrainState
from birdie_jax.storage.workdir import Workdir

# Compilation and the first steps, which are not what is looked for.
_SKIPPED_STEPS = 5
_TRACED_STEPS = 3


class ProfilerTrace:
    """Traces three train steps, from the sixth on that this process does, into the folder `tensorboard`.

    Attributes:
        name: the name of the hook.
    """

    name = "profiler_trace"

    def __init__(self, workdir: Workdir):
        """Write into the TensorBoard folder of `workdir`."""
        self._folder = workdir.tensorboard
        self._first_step = 0
        self._is_tracing = False

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
            jax.profiler.start_trace(str(self._folder))
            self._is_tracing = True
        else:
            self.close()
        return HookResult(state, {})

    def close(self) -> None:
        """End a trace that is under way, as where the run was stopped within it."""
        if self._is_tracing:
            jax.profiler.stop_trace()
            self._is_tracing = False
