"""Runs in separate processes without imports: forks of a process that has imported everything.

Imports take a third of the processor time of a short run, and drawing its report another third. The first
run of a test process starts the process to fork, which ends with the test process. Tests that start a verb
as a new process cover the start of Python and the imports.
"""

import atexit
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.forked_verbs import exit_status_of_verb, prepare_forks

REPOSITORY = Path(__file__).resolve().parents[1]
_MAX_BYTES = 1 << 20


class ForkedRun:
    """A process that runs `python -m birdie_jax.VERB ARGUMENTS`, like a `subprocess.Popen`.

    Attributes:
        pid: the number of the process.
        stdout: a text file of both outputs, to read.
        returncode: its exit status, or minus the signal that ended it; None until it is known.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        folder: Path = REPOSITORY,
        report: bool = False,
        max_file_bytes: int = resource.RLIM_INFINITY,
    ):
        """Start the process.

        Args:
            command: Python, "-m", the verb's module and the arguments.
            environment: all environment variables.
            folder: its working directory.
            report: whether to draw its report.
            max_file_bytes: the maximum size of a file.
        """
        module = command[2]
        assert list(command[:2]) == [sys.executable, "-m"] and module.startswith("birdie_jax."), command
        reading, writing = os.pipe()
        verb = module.removeprefix("birdie_jax.")
        request = {
            "verb": verb,
            "arguments": list(command[3:]),
            "environment": dict(environment),
            "folder": str(folder),
            "report": report,
            "max_file_bytes": max_file_bytes,
        }
        self._forker = _forker_with(_settings_of_jax(environment))
        self.pid = self._forker.ask(request, writing)
        os.close(writing)
        self.stdout = os.fdopen(reading)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        if self.returncode is None:
            self.returncode = self._forker.ask({"ended": self.pid})
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Return the exit status when the process has ended.

        Raises:
            subprocess.TimeoutExpired: it has not ended within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.02)
        return status

    def communicate(self, timeout: float = 240) -> tuple[str, None]:
        """Return the whole output of the process; raises like `wait`."""
        parts: list[str] = []
        reader = threading.Thread(target=lambda: parts.append(self.stdout.read()), daemon=True)
        reader.start()
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        reader.join(10)
        self.stdout.close()
        return "".join(parts), None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Forker:
    """The process that forks the runs."""

    def __init__(self, settings: tuple[tuple[str, str], ...]):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked_runs", str(theirs.fileno())],
            cwd=REPOSITORY,
            env=os.environ | dict(settings),
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        atexit.register(self._close)

    def ask(self, request, *descriptors: int):
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
            answer = self._socket.recv(_MAX_BYTES)
        assert answer, "the process that is forked has ended"
        return json.loads(answer)

    def _close(self):
        self._socket.close()
        self._process.wait(30)


_forker_with = cache(_Forker)


def _settings_of_jax(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the variables that JAX reads only during its import."""
    return tuple(sorted((name, value) for name, value in environment.items() if name.startswith("JAX_")))


def _serve(connection: socket.socket) -> None:
    """Fork and wait on request, until the test process ends."""
    from tests.without_reports import prepare as without_reports

    prepare_forks()
    while True:
        message, descriptors, *_ = socket.recv_fds(connection, _MAX_BYTES, 1)
        if not message:
            return
        request = json.loads(message)
        if "ended" in request:
            pid, status = os.waitpid(request["ended"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                connection.close()
                os.environ.clear()
                os.environ.update(request["environment"])
                os.chdir(request["folder"])
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(descriptors[0], 1)
                os.dup2(descriptors[0], 2)
                os.close(descriptors[0])
                sys.stdout.reconfigure(line_buffering=True)
                limit = (request["max_file_bytes"], resource.RLIM_INFINITY)
                resource.setrlimit(resource.RLIMIT_FSIZE, limit)
                if not request["report"]:
                    without_reports()
                sys.argv = [f"birdie_jax.{request['verb']}", *request["arguments"]]
                end_fork(exit_status_of_verb(request["verb"]))
            os.close(descriptors[0])
        connection.send(json.dumps(answer).encode())


def end_fork(status: int) -> None:
    """End a fork like Python ends a program."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
