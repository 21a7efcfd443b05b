"""Ctrl-C that cannot get lost."""

import signal
import threading
from types import FrameType, TracebackType


class Interrupts:
    """While entered, remembers Ctrl-C, besides raising KeyboardInterrupt as Python does.

    Where the interpreter happens to be in a destructor or a callback of a library when the signal comes,
    Python reports the exception and goes on as if nothing had been. A long loop that asks `check` now and
    then ends all the same. Entered elsewhere than in the main thread, which alone gets signals, it does
    nothing.
    """

    def __init__(self):
        self._heard = False
        self._before: object = None

    def __enter__(self) -> "Interrupts":
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and handler is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed."""
        if self._heard:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._heard = True
        raise KeyboardInterrupt
