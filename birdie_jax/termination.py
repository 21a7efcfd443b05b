"""A line that says that SIGTERM ended a command."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from types import FrameType

_STATUS = 128 + signal.SIGTERM
_STDERR = 2
# No signal has this number. The end of the pipe would not do, because forks keep it open.
_OVER = b"\0"


class _Ending:
    """The handler of SIGTERM: it prints a line and ends the process at once, with status 143.

    The main thread may be in a long call of a library, such as a compilation, and calls no handler until
    it returns. So a thread also waits for the signal.
    """

    def __init__(self, verb: str):
        self._line = f"birdie_jax.{verb}: stopped by SIGTERM\n".encode()
        self._process = os.getpid()
        self._begun = threading.Lock()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            # A fork before `_forget`.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.end()

    def end(self) -> None:
        # The first of both threads prints.
        if self._begun.acquire(blocking=False):
            with contextlib.suppress(OSError):
                os.write(_STDERR, self._line)
            os._exit(_STATUS)

    def wait(self, reading: int) -> None:
        # Python writes the number of each signal with a handler.
        while (number := os.read(reading, 1)) != _OVER:
            if number[0] == signal.SIGTERM and signal.getsignal(signal.SIGTERM) is self:
                self.end()


@contextlib.contextmanager
def named_sigterm(verb: str) -> Iterator[None]:
    """While entered, SIGTERM prints a line on stderr and ends the process with status 143.

    A handler that another part of the program sets, such as `engine.stop.StopRequest`, has precedence
    while it is set. Forks and new processes have the default of the system. If the signal already has a
    handler or is ignored, or outside the main thread, this does nothing.

    Args:
        verb: the name of the command's module, for the line.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    ending = _Ending(verb)
    process = os.getpid()
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, ending)
    thread = threading.Thread(target=partial(ending.wait, reading), name="sigterm", daemon=True)
    thread.start()
    try:
        yield
    finally:
        if os.getpid() == process:
            if signal.getsignal(signal.SIGTERM) is ending:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.set_wakeup_fd(before)
            os.write(writing, _OVER)
            thread.join()
            os.close(writing)
            os.close(reading)


def _forget() -> None:
    """In a fork, remove the handler and the pipe, whose other end the parent reads."""
    if isinstance(signal.getsignal(signal.SIGTERM), _Ending):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_forget)
