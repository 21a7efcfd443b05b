"""A training in a child process, which ends when this process ends."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator


@contextlib.contextmanager
def ended_with_us(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass SIGTERM and interrupts to a training, which then saves a checkpoint, and wait for it."""

    def stop(number: int, frame: object) -> None:
        del frame
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except BaseException:
        process.terminate()
        raise
    finally:
        process.wait()
        signal.signal(signal.SIGTERM, before)
