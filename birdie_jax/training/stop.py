"""A polite end: SIGTERM or Ctrl-C asks the loop to save and stop after the step at hand."""

import signal
from types import FrameType, TracebackType


class StopRequest:
    """While entered, notes SIGTERM and SIGINT instead of dying of them; a second one ends at once.

    Attributes:
        signal: the signal that asked for the end, or None.
    """

    def __init__(self):
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

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
