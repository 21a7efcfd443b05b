"""Runs in separate processes without imports: forks of a process that has imported everything.

Imports take a third of the processor time of a short run, and drawing its report another third. The first
run of a test process starts the process to fork, which ends with the test process. Runs for which imports
find other variables have another one. Tests that start a verb as a new process cover the start of Python
and the imports.
"""

import atexit
import gc
import importlib
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

REPOSITORY = Path(__file__).resolve().parents[1]
WITHOUT_REPORT = ("tests.without_reports",)
_MAX_BYTES = 1 << 20


class ForkedRun:
    """A process that runs `python -m MODULE ARGUMENTS`, like a `subprocess.Popen`.

    Attributes:
        pid: the number of the process.
        stdout: a text file of its output, and of its errors without `stderr`, to read.
        returncode: its exit status, or minus the signal that ended it; None until it is known.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        folder: Path = REPOSITORY,
        preparations: Sequence[str] = WITHOUT_REPORT,
        stderr: IO[str] | None = None,
        max_file_bytes: int = resource.RLIM_INFINITY,
    ):
        """Start the process.

        Args:
            command: Python, "-m", the module and the arguments.
            environment: all environment variables.
            folder: its working directory, the first in which it finds modules.
            preparations: the names of modules with a function `prepare` that changes the process.
            stderr: a file for its errors.
            max_file_bytes: the maximum size of a file.
        """
        assert list(command[:2]) == [sys.executable, "-m"], command
        reading, writing = os.pipe()
        request = {
            "module": command[2],
            "arguments": list(command[3:]),
            "environment": dict(environment),
            "folder": str(folder),
            "preparations": list(preparations),
            "max_file_bytes": max_file_bytes,
        }
        self._forker = _forker_with(_settings_of_imports(environment))
        self.pid = self._forker.ask(request, writing, stderr.fileno() if stderr else writing)
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


def _settings_of_imports(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the variables that only imports read."""
    found = (item for item in environment.items() if item[0].startswith(("JAX_", "PYTHONPATH")))
    return tuple(sorted(found))


def _serve(connection: socket.socket) -> None:
    """Fork and wait on request, until the test process ends."""
    prepare_forks()
    while True:
        message, descriptors, *_ = socket.recv_fds(connection, _MAX_BYTES, 2)
        if not message:
            return
        request = json.loads(message)
        if "ended" in request:
            pid, status = os.waitpid(request["ended"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            preparations = list(map(importlib.import_module, request["preparations"]))
            answer = os.fork()
            if answer == 0:
                connection.close()
                os.environ.clear()
                os.environ.update(request["environment"])
                os.chdir(request["folder"])
                sys.path[0] = request["folder"]
                for number, descriptor in enumerate([os.open(os.devnull, os.O_RDONLY), *descriptors]):
                    os.dup2(descriptor, number)
                    os.close(descriptor)
                sys.stdout.reconfigure(line_buffering=True)
                limit = (request["max_file_bytes"], resource.RLIM_INFINITY)
                resource.setrlimit(resource.RLIMIT_FSIZE, limit)
                for each in preparations:
                    each.prepare()
                sys.argv = [request["module"], *request["arguments"]]
                end_fork(exit_status_of(request["module"]))
            for descriptor in descriptors:
                os.close(descriptor)
        connection.send(json.dumps(answer).encode())


def end_fork(status: int) -> None:
    """End a fork like Python ends a program."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run_module(module: str, *arguments: str) -> tuple[int, str, str]:
    """Return the exit status, stdout and stderr of `python -m MODULE ARGUMENTS`, in a fork."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        child = os.fork()
        if child == 0:
            os.dup2(stdout.fileno(), 1)
            os.dup2(stderr.fileno(), 2)
            sys.argv = [module, *arguments]
            status = exit_status_of(module)
            sys.stdout.flush()
            os._exit(status)
        _, status = os.waitpid(child, 0)
        stdout.seek(0)
        stderr.seek(0)
        return os.waitstatus_to_exitcode(status), stdout.read(), stderr.read()


def exit_status_of(module: str) -> int:
    """Run the module like Python runs a program."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr, flush=True)
            return 1
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def prepare_forks() -> None:
    """Import the modules of the verbs, so no fork has to."""
    import birdie_jax.config_flag
    import birdie_jax.finetuning.run
    import birdie_jax.generation
    import birdie_jax.planning
    import birdie_jax.reporting
    import birdie_jax.resolve
    import birdie_jax.tasks.evaluation
    import birdie_jax.trained_model  # noqa: F401

    # Exclude these objects from garbage collection in forks, and collect less often.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
