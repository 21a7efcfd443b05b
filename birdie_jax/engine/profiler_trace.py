"""A hook that traces devices and host in some train steps, for xprof and TensorBoard."""

import re
import tempfile
from pathlib import Path

import jax
from absl import logging
from jaxtyping import PyTree

from birdie_jax.array_types import Key
from birdie_jax.engine.protocols import HookCall, HookResult
from birdie_jax.engine.state import TrainState
from birdie_jax.errors import ConfigError
from birdie_jax.storage import is_remote, upload
from birdie_jax.storage.workdir import Workdir

_STEPS = re.compile(r"([1-9]\d{0,9}):([1-9]\d{0,9})")


def profiled_steps(text: str, num_steps: int) -> tuple[int, int]:
    """Return the first and the last step of `config.train.profile`.

    Args:
        text: `first:last`, both traced.
        num_steps: the number of steps of the run; 0 if its stages determine it.

    Raises:
        ConfigError: `text` is not such a pair, or the run does not have these steps.
    """
    found = _STEPS.fullmatch(text.strip())
    first, last = map(int, found.groups()) if found else (1, 0)
    if first > last or (num_steps and last > num_steps):
        within = f" = {num_steps}" if num_steps else ""
        raise ConfigError(
            f"config.train.profile: found {text!r}; allowed: first:last, such as 20:22, of the "
            f"steps from 1 to train.num_steps{within}"
        )
    return first, last


class ProfilerTrace:
    """Traces some train steps into the folder `tensorboard`.

    The profiler writes only to disks; for a bucket the trace is first written locally. A process that
    starts after the first of the steps traces none.

    Attributes:
        name: the name of the hook.
    """

    name = "profiler_trace"

    def __init__(self, workdir: Workdir, first: int, last: int):
        """Trace the steps from `first` to `last` into the TensorBoard folder of `workdir`."""
        self._folder = workdir.tensorboard
        self._before, self._last = first - 1, last
        self._is_tracing = False
        self._spool: tempfile.TemporaryDirectory | None = None

    def create_section(self, key: Key) -> PyTree:
        """Return nothing: the hook keeps no arrays."""
        del key
        return {}

    def resume(self, state: TrainState) -> None:
        """Log a warning, in the first process, if the first of the steps is past."""
        step = int(state.step)
        if step > self._before and jax.process_index() == 0:
            logging.warning(
                "config.train.profile: found %d:%d; step %d is past: the run continues after step %d, and "
                "traces nothing",
                *(self._before + 1, self._last, self._before + 1, step),
            )

    def is_due(self, step: int, num_steps: int) -> bool:
        """Return whether the trace begins or ends at `step`."""
        return step in (self._before, self._last)

    def run(self, state: TrainState, call: HookCall) -> HookResult:
        """Begin or end the trace, with no step in progress."""
        jax.block_until_ready(state.params)
        if call.step == self._before:
            if is_remote(self._folder):
                self._spool = tempfile.TemporaryDirectory(prefix="birdie_jax-trace-")
            jax.profiler.start_trace(self._spool.name if self._spool else str(self._folder))
            self._is_tracing = True
        else:
            self.close()
        return HookResult(state, {})

    def close(self) -> None:
        """End a trace in progress, for example if the run was stopped during it.

        Raises:
            OSError: the trace cannot be written.
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
