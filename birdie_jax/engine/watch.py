"""Detect a process that is lost or hangs, name it and its phase, and end this process."""

import contextlib
import faulthandler
import itertools
import json
import math
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, NoReturn

import jax
from absl import logging
from etils import epath

from birdie_jax.engine.coordination import Processes
from birdie_jax.errors import exit_status, without_secrets
from birdie_jax.storage import is_remote, write_whole
from birdie_jax.storage.workdir import Workdir

# sysexits.h calls this a temporary failure; the job may be restarted.
EXIT_ANOTHER_FAILED = 75
_BEATS_IN_LIMIT = 10
_MAX_BEAT_SECONDS = 2.0
_FRAMES_SHOWN = 3
# A phase that may compile may take this many times as long.
_COMPILE_GRACE = 10
_REPORTING_SECONDS = 10.0
_SLOW_SHARE = 0.25
# The watch checks process 0 if it does not answer for a beat and this time. This process aborts six seconds
# after the end of process 0 (`processes.py`).
_SILENT_SECONDS = 1.0
_LOOK_SECONDS = 0.5


class Limits(NamedTuple):
    """How long a process may be silent.

    Attributes:
        lost_seconds: the time after which a process that does not answer counts as lost.
        hung_seconds: the time after which a process whose loop makes no progress counts as hung; ten times
            as long in a phase that may compile.
    """

    lost_seconds: float
    hung_seconds: float


class _Beat(NamedTuple):
    """The heartbeat that a process publishes.

    Attributes:
        serial: the number of heartbeats so far.
        progress: the number of heartbeats of its loop.
        phase: the step and phase of the last heartbeat.
        done: whether the process has ended without an error.
        host_seconds: the seconds per step in which the process does not wait for its devices.
    """

    serial: int = 0
    progress: int = 0
    phase: str = "before the first step"
    done: bool = False
    host_seconds: float = 0.0


class Watch:
    """A thread, while entered, that publishes heartbeats, reads those of others, and ends a failed run.

    If another process is lost, only this thread can end this process. The loop waits in an operation on a
    device, where no signal reaches it. The steps since the last checkpoint are lost. A single process is
    not watched.

    Attributes:
        processes: the processes of the run.
        began: the time of its creation, from `time.monotonic`.
    """

    def __init__(
        self,
        processes: Processes,
        limits: Limits,
        workdir: Workdir,
        own_faults: tuple[type[BaseException], ...],
    ):
        """Make a watch over `processes`.

        Args:
            processes: the processes of the run.
            limits: how long a process may be silent.
            workdir: the folder of the run, for stacks.
            own_faults: exceptions that cannot follow from the failure of another process.
        """
        self.processes = processes
        self.began = time.monotonic()
        self._named: int | None = None
        self._limits = limits
        self._workdir = workdir
        self._own_faults = own_faults
        self._beat_seconds = min(_MAX_BEAT_SECONDS, limits.lost_seconds / _BEATS_IN_LIMIT)
        self._beat = _Beat()
        self._hangs_from = math.inf
        self._heard = {index: (_Beat(), time.monotonic()) for index in range(processes.count)}
        self._answered = time.monotonic()
        self._over = threading.Event()
        self._left = threading.Event()
        self._ending = threading.Lock()
        self._thread = threading.Thread(target=self._listen, name="watch", daemon=True)
        self._first_thread = threading.Thread(target=self._watch_first, name="watch first", daemon=True)

    def heartbeat(self, step: int, phase: str, *, compiles: bool = False) -> None:
        """Report that the loop begins a phase; after the first heartbeat, the loop must make progress.

        All processes must pass the same phases in the same order. If all are blocked, the others wait for
        the process with the fewest heartbeats.

        Args:
            step: the current step of the loop.
            phase: the current phase.
            compiles: whether the phase may have to compile.
        """
        self._beat = self._beat._replace(progress=self._beat.progress + 1, phase=f"step {step}, {phase}")
        patience = self._limits.hung_seconds * (_COMPILE_GRACE if compiles else 1)
        self._hangs_from = time.monotonic() + patience

    def compare_hosts(self, host_seconds: float, step_seconds: float) -> dict[str, float]:
        """Publish this process's host time per step; return the slowest process and its time.

        Processes wait for each other in each step, so the step takes equally long in all of them. They
        differ in the time in which they do not wait for their devices, but for a batch or in Python. A
        warning names a process whose time exceeds the median by a quarter of a step. The result is empty
        for a single process, and until the others have published their times.
        """
        self._beat = self._beat._replace(host_seconds=host_seconds)
        published = {index: beat.host_seconds for index, (beat, _) in self._heard.items()}
        if not all(published.values()):
            return {}
        slowest = max(published, key=lambda index: published[index])
        longest, median = published[slowest], statistics.median(published.values())
        is_slow = longest - median > _SLOW_SHARE * step_seconds
        if is_slow and slowest != self._named and self.processes.first:
            logging.warning(
                "process %d delays the others: it works %.3g s of each step of %.3g s without waiting for "
                "its devices, the median process %.3g s",
                *(slowest, longest, step_seconds, median),
            )
        self._named = slowest if is_slow else None
        return {
            "slowest_process": float(slowest),
            "slowest_host_seconds": longest,
            "median_host_seconds": median,
        }

    def disarm(self) -> None:
        """Report that the loop has ended; what follows has no time limit."""
        self._hangs_from = math.inf

    def __enter__(self) -> "Watch":
        if self.processes.count > 1:
            self._answered = time.monotonic()
            self._heard = {index: (_Beat(), self._answered) for index in self._heard}
            self._thread.start()
            if not self.processes.first:
                self._first_thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.processes.count == 1:
            return
        if error is None:
            self._over.set()
            self._thread.join()
            self.processes.write("beat", json.dumps(self._beat._replace(serial=-1, done=True)))
            self._left.set()
            return
        self._hangs_from = math.inf
        if isinstance(error, Exception) and not isinstance(error, self._own_faults):
            # If another process is the cause, the other thread soon ends this process and reports it.
            seconds = self._limits.lost_seconds + 3 * self._beat_seconds
            logging.warning(
                "%s; waits %.0f s for a sign that another process is the cause",
                kind and kind.__name__,
                seconds,
            )
            time.sleep(seconds)
            with self._ending:
                traceback.print_exception(kind, error, trace)
        with self._ending:
            text = without_secrets(str(error)) or type(error).__name__
            if isinstance(error, SystemExit):
                # `command_line.refuse` has printed the reason.
                text = f"it ended with {error.code}"
            else:
                print(f"birdie_jax.train: {text}", file=sys.stderr, flush=True)
            failed = text.splitlines()[0][:1000]
            # If the first process hangs, its service does not answer.
            _finish_within(_REPORTING_SECONDS, lambda: self.processes.write("failed", failed))
            self._exit(_status_of(error))

    def _listen(self) -> None:
        for serial in itertools.count(1):
            if self._over.wait(self._beat_seconds):
                return
            # If the service does not answer, the thread for the first process detects it.
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                self._compare(serial)

    def _compare(self, serial: int) -> None:
        self.processes.write("beat", json.dumps(self._beat._replace(serial=serial)))
        beats = self.processes.read("beat")
        failed = self.processes.read("failed")
        stalled = self.processes.read("stalled")
        answered = self._answered = time.monotonic()
        for index, text in beats.items():
            beat = _Beat(*json.loads(text))
            if beat.serial != self._heard[index][0].serial:
                self._heard[index] = (beat, answered)
        for index, text in failed.items():
            self._end(f"process {index} failed: {text}")
        for index, (beat, when) in self._heard.items():
            if not beat.done and answered - when > self._limits.lost_seconds:
                self._end_lost(index, f"it has not answered for {answered - when:.0f} seconds")
        if stalled or answered > self._hangs_from:
            self._stalled({index: beat for index, (beat, _) in self._heard.items()})

    def _watch_first(self) -> None:
        """End this process when the first process, which runs JAX's coordination service, is gone."""
        while not self._left.wait(_LOOK_SECONDS):
            silent = time.monotonic() - self._answered
            if silent > self._limits.lost_seconds:
                self._end_lost(0, f"it has not answered for {silent:.0f} seconds")
            elif silent > self._beat_seconds + _SILENT_SECONDS and not self.processes.first_listens():
                self._end_lost(0, "it no longer takes connections")

    def _end_lost(self, index: int, sign: str) -> NoReturn:
        self._end(f"process {index} is lost: {sign}; it was at: {self._heard[index][0].phase}")

    def _stalled(self, beats: dict[int, _Beat]) -> NoReturn:
        """Publish this process's phase, read the others', and end; the message names the last process."""
        own = {
            "progress": self._beat.progress,
            "phase": self._beat.phase,
            "frames": _innermost_frames(),
        }
        self.processes.write("stalled", json.dumps(own))
        time.sleep(3 * self._beat_seconds)
        reported = {index: json.loads(text) for index, text in self.processes.read("stalled").items()}
        progress = {index: reported.get(index, beat._asdict())["progress"] for index, beat in beats.items()}
        behind = [index for index, count in progress.items() if count == min(progress.values())]
        seconds = f"{self._limits.hung_seconds:.0f} seconds"
        if len(behind) == len(progress):
            self._end(f"no process has made progress for {seconds}; all are at: {self._beat.phase}")
        reports = []
        for index in behind:
            report = reported.get(index, {"phase": beats[index].phase, "frames": ["its stack is unknown"]})
            reports.append(
                f"process {index} hangs: it has made no progress for {seconds}; "
                f"it is at: {report['phase']}; in {', called by '.join(report['frames'])}"
            )
        self._end("; ".join(reports))

    def _end(self, message: str) -> NoReturn:
        with self._ending:
            number = self.processes.index
            path = self._workdir.stacks_of(number)
            stacks = _stacks()
            # A store that does not answer must not block the end of the process.
            if not _finish_within(_REPORTING_SECONDS, lambda: self._print_end(message, path, stacks)):
                print(
                    f"birdie_jax.train: process {number} stops: {message}. {self._workdir} is silent; "
                    f"the same command resumes from its last checkpoint. Stacks of this process:\n{stacks}",
                    file=sys.stderr,
                    flush=True,
                )
            self._exit(EXIT_ANOTHER_FAILED)

    def _print_end(self, message: str, path: epath.Path, stacks: str) -> None:
        try:
            if not is_remote(path):
                path.parent.mkdir(exist_ok=True)
            write_whole(path, f"{message}\n{stacks}".encode())
            steps = self._workdir.saved_steps()
            where, good = str(path), f"step {steps[-1]}" if steps else "none"
        except OSError as error:
            # A full disk must not block the end either.
            where, good = f"\n{stacks}", f"unknown ({error})"
        print(
            f"birdie_jax.train: process {self.processes.index} stops: {message}. Last checkpoint: {good}; "
            f"the same command resumes from it. Stacks of this process: {where}",
            file=sys.stderr,
            flush=True,
        )

    def _exit(self, status: int) -> NoReturn:
        if self.processes.first:
            # The coordination service ends with this process; the others need time to read its messages.
            time.sleep(5 * self._beat_seconds)
        sys.stdout.flush()
        os._exit(status)


def _status_of(error: BaseException) -> int:
    match error:
        case SystemExit(code=int(code)):
            return code
        case KeyboardInterrupt():
            return 128 + signal.SIGINT
    return exit_status(error)


def _finish_within(seconds: float, action: Callable[[], None]) -> bool:
    """Run an action; return whether it ended within `seconds`, with or without an error."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _stacks() -> str:
    """Return the stacks of all threads, from faulthandler."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read()


def _innermost_frames() -> list[str]:
    """Return the innermost frames of the main thread, innermost first."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    summary = traceback.extract_stack(frame)[-_FRAMES_SHOWN:]
    return [f"{entry.name} ({entry.filename}:{entry.lineno})" for entry in reversed(summary)]
