"""A training run in a child process, which ends with this process."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator


@contextlib.contextmanager
def ended_with_us(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Terminate the child on SIGTERM, SIGHUP or an interrupt, and wait while it saves and ends.

    Start the child in a session of its own. In this one, a terminal or Slurm may signal it too, and a
    second SIGTERM ends it before it has saved.
    """

    def stop(number: int, frame: object) -> None:
        del frame
        raise SystemExit(128 + number)

    numbers = [signal.SIGTERM, signal.SIGHUP]
    # nohup ignores SIGHUP.
    numbers = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    except BaseException:
        process.terminate()
        raise
    finally:
        process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
