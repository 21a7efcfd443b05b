"""A training run in a child process, which ends with this process."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator


@contextlib.contextmanager
def ended_with_us(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Terminate the child on SIGTERM or an interrupt, and wait while it saves a checkpoint and ends."""

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
