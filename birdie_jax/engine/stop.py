"""A polite end: SIGTERM or Ctrl-C to any process asks the loops of all to save the same step and stop."""

import signal
from types import FrameType, TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from birdie_jax.engine.mesh import replicated


class StopRequest:
    """While entered, records SIGTERM and SIGINT instead of ending by them; a second one ends at once.

    Attributes:
        signal: the signal that asked for the end, or None.
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
    """What the processes of a run agree on: whether one of them was asked to stop.

    Every process asks at the same places of its loop. The answer comes from the devices, by a maximum over
    a number that each process gives, so it is the same everywhere; it is read when the next question is
    asked, so that the devices are not waited for. A single process needs no agreement and stops at once.

    Attributes:
        answer: the last one: a signal that some process had got, or None.
    """

    def __init__(self, mesh: Mesh, request: StopRequest):
        """Agree over the devices of `mesh`; `request` is what this process was asked."""
        self._request = request
        self._everywhere = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._shape = (mesh.size,)
        self._highest = jax.jit(jnp.max, out_shardings=replicated(mesh))
        self._asked: jax.Array | None = None
        self.answer: signal.Signals | None = None

    def ask(self) -> signal.Signals | None:
        """Return the signal that some process had got when the question before this one was asked."""
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
