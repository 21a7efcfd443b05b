"""Stop a run: after SIGTERM or Ctrl-C to any process, all processes save the same step and stop."""

import contextlib
import logging
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint
from absl import logging as absl_logging
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from birdie_jax.engine.mesh import replicated

# A failure in a thread of orbax reaches the loop as an exception. Each of the threads also logs it with a
# traceback. Threads of tensorstore, whose event loop has ended by then, print a traceback for each array.
# On a full disk, these are hundreds of lines around the one line with the remedy.

_ORBAX = str(Path(orbax.checkpoint.__file__).parent)


@contextlib.contextmanager
def silence_repeated_errors() -> Iterator[None]:
    """Suppress, while entered, the output of orbax's threads about exceptions that they also raise.

    After an exception, the output stays suppressed until the program ends, because the threads run for a
    while. The loggers have the filter, because a program without absl's `app.run` has other handlers.
    """
    loggers = absl_logging.get_absl_logger(), logging.getLogger("asyncio")
    before = sys.unraisablehook

    def unraisablehook(unraisable: Any) -> None:
        # Only a call from C has no object: tensorstore's, when its event loop is closed.
        error = unraisable.exc_value
        if unraisable.object is None and str(error) == "Event loop is closed":
            return
        before(unraisable)

    for logger in loggers:
        logger.addFilter(_is_new)
    sys.unraisablehook = unraisablehook
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    yield
    for logger in loggers:
        logger.removeFilter(_is_new)
    sys.unraisablehook = before


def _is_new(record: logging.LogRecord) -> bool:
    if record.levelno < logging.ERROR or not record.exc_info:
        return True
    if record.name == "asyncio":
        # Only orbax has tasks here. It waits only for the first of many that fail.
        return "was never retrieved" not in record.getMessage()
    return not record.pathname.startswith(_ORBAX)


class StopRequest:
    """While entered, records SIGTERM and SIGINT instead of ending the process; a second one ends it.

    Attributes:
        signal: the received signal, or None.
    """

    def __init__(self):
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        signal.signal(number, signal.SIG_DFL)


class SharedStop:
    """The agreement of a run's processes on whether one of them received a stop signal.

    Every process calls `ask` at the same points of its loop. The devices compute the answer as the maximum
    of one number from each process, so every process gets the same answer. A process reads it at its next
    call, so the loop does not wait for the devices. A single process needs no agreement and stops at once.

    Attributes:
        answer: the last answer: a signal that some process received, or None.
    """

    def __init__(self, mesh: Mesh, request: StopRequest):
        """Agree over the devices of `mesh`; `request` is this process's own."""
        self._request = request
        self._everywhere = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._shape = (mesh.size,)
        self._highest = jax.jit(jnp.max, out_shardings=replicated(mesh))
        self._asked: jax.Array | None = None
        self.answer: signal.Signals | None = None

    def ask(self) -> signal.Signals | None:
        """Return the signal that some process had received at the previous call, or None."""
        if jax.process_count() == 1:
            self.answer = self._request.signal
            return self.answer
        own = np.int32(self._request.signal or 0)
        numbers = jax.make_array_from_callback(
            self._shape, self._everywhere, lambda index: np.broadcast_to(own, self._shape)[index]
        )
        before, self._asked = self._asked, self._highest(numbers)
        if before is not None and int(before):
            self.answer = signal.Signals(int(before))
        return self.answer
