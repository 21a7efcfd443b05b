"""Starts of a program in forks, without new imports, with at most one disturbance."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.fault_kinds.layer import Disturbance, arm
from tests.forked_runs import end_fork

_LIMIT_SECONDS = 600


class Moment(NamedTuple):
    """The moment of a signal: a CPU time of the process, and a wait after it.

    Attributes:
        cpu_seconds: the CPU time of the process.
        wait_seconds: the wait after it, to reach moments when the process computes nothing.
        number: the signal number.
    """

    cpu_seconds: float
    wait_seconds: float = 0.0
    number: int = signal.SIGKILL


class Ended(NamedTuple):
    """The end of a start.

    Attributes:
        status: the exit status, or minus the number of the signal that ended the process.
        printed: the stdout of the process.
        errors: the stderr of the process.
        operations: the lines of the layer: number, operation and path.
        cpu_seconds: the CPU time of the process.
        seconds: the wall time of the process.
        others: the ends of the other processes of the start.
    """

    status: int
    printed: str
    errors: str
    operations: tuple[str, ...]
    cpu_seconds: float
    seconds: float
    others: tuple["Ended", ...] = ()


class HungError(RuntimeError):
    """A start does not end."""


def run_in_forks(
    actions: Sequence[Callable[[], int]],
    folder: Path,
    *,
    disturbance: Disturbance | None = None,
    moment: Moment | None = None,
    prepare: Callable[[], None] | None = None,
) -> Ended:
    """Run functions in forks until they end, or until the disturbance or the signal ends them.

    Args:
        actions: a function for each process, which returns the exit status. The first process is disturbed.
        folder: the folder for the output of the processes.
        disturbance: the operation to disturb; None for none.
        moment: the moment to send a signal; None for no signal.
        prepare: the function that each process runs first.

    Raises:
        HungError: a process does not end within ten minutes.
    """
    outputs = [
        [folder / f"{name}{number}.txt" for name in ("stdout", "stderr", "operations")]
        for number in range(len(actions))
    ]
    children = [
        start_fork(action, files, None if number else disturbance, prepare)
        for number, (action, files) in enumerate(zip(actions, outputs, strict=True))
    ]
    first, began, cpu_seconds = children[0], time.monotonic(), 0.0
    running, ends = list(children), {}
    while True:
        for child in running:
            pid, status, usage = os.wait4(child, os.WNOHANG)
            if pid:
                cpu_time = usage.ru_utime + usage.ru_stime
                ends[child] = os.waitstatus_to_exitcode(status), cpu_time, time.monotonic() - began
        running = [child for child in running if child not in ends]
        if not running:
            break
        cpu_seconds = max(cpu_seconds, cpu_seconds_of(first))
        if moment is not None and first in running and cpu_seconds >= moment.cpu_seconds:
            time.sleep(moment.wait_seconds)
            os.kill(first, moment.number)
            moment = None
        elif time.monotonic() - began > _LIMIT_SECONDS:
            for child in running:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            hung = outputs[children.index(running[0])][1].read_text()
            raise HungError(f"no end in {_LIMIT_SECONDS} s: {hung[-1000:]}")
        time.sleep(0.004)
    ended, *others = (
        _read_end(*ends[child], outputs=files) for child, files in zip(children, outputs, strict=True)
    )
    return ended._replace(others=tuple(others))


def _read_end(status: int, cpu_seconds: float, seconds: float, outputs: list[Path]) -> Ended:
    printed, errors, operations = (path.read_text(errors="replace") for path in outputs)
    rounded = round(cpu_seconds, 2), round(seconds, 2)
    return Ended(status, printed, errors, tuple(operations.splitlines()), *rounded)


def start_fork(
    action: Callable[[], int],
    outputs: list[Path],
    disturbance: Disturbance | None = None,
    prepare: Callable[[], None] | None = None,
) -> int:
    """Start a fork that runs a function, and return its process ID.

    Args:
        action: the function of the process; it returns the exit status.
        outputs: the files for stdout, for stderr, and for the lines of the layer.
        disturbance: the operation to disturb; None for none.
        prepare: the function that the process runs first.
    """
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        files = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) for path in outputs]
        for number, descriptor in enumerate([os.open(os.devnull, os.O_RDONLY), *files[:2]]):
            os.dup2(descriptor, number)
        if prepare is not None:
            prepare()
        if disturbance is not None:
            arm(disturbance, files[2])
        status = action()
    except BaseException:
        traceback.print_exc()
    finally:
        end_fork(status)
    raise AssertionError("the fork has ended")


def cpu_seconds_of(process: int) -> float:
    """Return the user and system CPU time of a process so far, or 0 if there is no such process."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def call_in_fork(function: Callable[[], bytes]) -> bytes:
    """Run a function in another process, so it leaves no threads in this one, and return its result."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "wb") as answer:
                answer.write(function())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        contents = answer.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"a check ended with status {os.waitstatus_to_exitcode(status)}")
    return contents
