"""A training run in a child process, which ends with this process."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO


def run_child(command: Sequence[str], output: IO[str], folder: Path | None = None) -> int:
    """Run a command in a child process, and return its exit status.

    On SIGTERM, SIGHUP or an interrupt, terminate the child and wait while it saves and ends.

    Args:
        command: the program and its arguments.
        output: a file for what the command prints.
        folder: the command's current folder; this process's if None.

    Raises:
        SystemExit: this process received SIGTERM or SIGHUP.
    """
    # In this session, a terminal or Slurm may signal the child too, and a second SIGTERM ends it before
    # it has saved.
    with (
        subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        ) as process,
        _ended_with_us(process),
    ):
        return _wait(process)


def _wait(process: subprocess.Popen[bytes]) -> int:
    # A signal just before a system call does not interrupt it, so none may take as long as the child.
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=60)


@contextlib.contextmanager
def _ended_with_us(process: subprocess.Popen[bytes]) -> Iterator[None]:
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
