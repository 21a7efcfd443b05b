"""A group of processes on this machine; if one fails, all end."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple

_FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# How long processes of a group may keep its output open after their leader has ended.
_DRAIN_SECONDS = 5.0
_PRINTING = threading.Lock()


class GroupResult(NamedTuple):
    """The result of a group of processes.

    Attributes:
        status: the exit status of the whole group; 0 if all ended with 0.
        forwarded: the signal that was forwarded to the processes, or None.
        first_failed: the index of the process that failed first by itself, or None.
        first_status: the exit status of that process, negative if a signal killed it; 0 if none failed.
        killed: the indices of the processes that did not end in time and were killed.
        statuses: the exit status of every process, by its index.
    """

    status: int
    forwarded: signal.Signals | None
    first_failed: int | None
    first_status: int
    killed: list[int]
    statuses: list[int]


def run_group(commands: Sequence[Sequence[str]], grace_seconds: float, stop_seconds: float) -> GroupResult:
    """Run the commands in parallel until all have ended.

    If a process fails, the others get SIGTERM, and SIGKILL after `grace_seconds`. SIGTERM and SIGINT to
    this process are forwarded to all processes once. SIGKILL follows after `stop_seconds`, or at a second
    one of them. SIGHUP, or a standard output that is closed, has the effect of one SIGTERM. When a process
    ends, the processes that it started are killed.

    Raises:
        OSError: a command cannot be started; the started ones are killed.
    """
    return _Group(grace_seconds, stop_seconds).run(commands)


class _Group:
    def __init__(self, grace_seconds: float, stop_seconds: float):
        self.grace_seconds, self.stop_seconds = grace_seconds, stop_seconds
        # With a SimpleQueue, a signal handler may put an item while the same thread waits for one.
        self.events: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self.processes: list[subprocess.Popen] = []
        self.running: set[int] = set()
        self.statuses: dict[int, int] = {}
        self.killed: list[int] = []
        self.forwarded: signal.Signals | None = None
        self.first_failed: int | None = None
        self.deadline: float | None = None

    def run(self, commands: Sequence[Sequence[str]]) -> GroupResult:
        before = {number: signal.signal(number, self._on_signal) for number in _FORWARDED_SIGNALS}
        relays = []
        try:
            for index, command in enumerate(commands):
                relays.append(self._start(index, command))
            while self.running:
                self._wait_for_event()
            for relay in relays:
                relay.join(_DRAIN_SECONDS)
        finally:
            for index in self.running:
                _signal_group(self.processes[index], signal.SIGKILL)
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._result()

    def _start(self, index: int, command: Sequence[str]) -> threading.Thread:
        # In its own session, a process gets Ctrl-C only once, from here, and not also from the terminal.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.processes.append(process)
        self.running.add(index)
        relay = threading.Thread(target=self._relay, args=(index, process), daemon=True)
        relay.start()
        threading.Thread(target=self._await_end, args=(index, process), daemon=True).start()
        return relay

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.events.put(("signal", number))

    def _await_end(self, index: int, process: subprocess.Popen) -> None:
        # Do not reap the process yet, so no other process gets its number before its group has ended.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        self.events.put(("end", index))

    def _wait_for_event(self) -> None:
        timeout = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
        try:
            kind, value = self.events.get(timeout=timeout)
        except queue.Empty:
            self._kill()
            return
        if kind == "signal":
            self._forward(signal.Signals(value))
        else:
            self._on_exit(value)

    def _forward(self, number: signal.Signals) -> None:
        if self.forwarded is not None:
            # A terminal that closes sends the signal, and also closes the output.
            if number != signal.SIGHUP:
                self._kill()
            return
        self.forwarded = signal.SIGTERM if number == signal.SIGHUP else number
        if self.first_failed is not None:
            # The processes already have SIGTERM; a second signal would interrupt their saving.
            return
        self._signal_running(self.forwarded)
        self._set_deadline(self.stop_seconds)

    def _on_exit(self, index: int) -> None:
        self.running.discard(index)
        # Processes that it leaves behind would keep its devices, its port and its output.
        _signal_group(self.processes[index], signal.SIGKILL)
        status = self.statuses[index] = self.processes[index].wait()
        if status and self.first_failed is None and index not in self.killed:
            self.first_failed = index
            if self.forwarded is None:
                self._signal_running(signal.SIGTERM)
                self._set_deadline(self.grace_seconds)

    def _relay(self, index: int, process: subprocess.Popen) -> None:
        for line in process.stdout or ():
            text = line.rstrip(b"\r\n").decode("utf-8", "replace")
            with _PRINTING:
                try:
                    print(f"[{index}] {text}", flush=True)
                except OSError:
                    # Keep reading: a process whose pipe is full would wait forever.
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                    self.events.put(("signal", signal.SIGHUP))

    def _set_deadline(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds

    def _kill(self) -> None:
        self.deadline = None
        self.killed += sorted(self.running)
        for index in self.running:
            _signal_group(self.processes[index], signal.SIGKILL)

    def _signal_running(self, number: signal.Signals) -> None:
        # Signal only the process: it ends its own children.
        for index in self.running:
            os.kill(self.processes[index].pid, number)

    def _result(self) -> GroupResult:
        first = 0 if self.first_failed is None else self.statuses[self.first_failed]
        status = 0
        if any(self.statuses.values()):
            if self.forwarded is not None:
                status = 128 + self.forwarded
            else:
                status = first if first > 0 else 128 - first
        ended = [self.statuses[index] for index in sorted(self.statuses)]
        return GroupResult(status, self.forwarded, self.first_failed, first, self.killed, ended)


def _signal_group(process: subprocess.Popen, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
