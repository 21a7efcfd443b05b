"""Prints and records the program of a process at each start of a run.

The first process writes the record before the first step, and again when it ends. A killed process leaves a
start without an end.
"""

import contextlib
import importlib.metadata
import platform
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from absl import logging
from jax.sharding import Mesh

import birdie_jax
from birdie_jax.errors import DataError, one_line, without_secrets
from birdie_jax.start_record import Program, Start, read_starts
from birdie_jax.storage import to_plain, write_json
from birdie_jax.storage.workdir import Workdir

Announce = Callable[[Mesh, str], None]
"""(mesh of a run, a line that explains the choice) -> None."""

_PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin", "flax", "optax")
_PACKAGES += ("orbax-checkpoint", "grain", "numpy")
# The variables that change the results or the speed of a program.
_VARIABLES = re.compile(
    r"(JAX|XLA|LIBTPU|TPU|MEGASCALE|CUDA|NCCL|MALLOC|OMP|BIRDIE)_\w+|SLURM_JOB_ID|LD_PRELOAD"
)
_SECRET_NAME = re.compile("TOKEN|SECRET|PASSWORD|CREDENTIAL|API_?KEY")
_GIT_SECONDS = 10
# The driver creates this file.
_NVIDIA = Path("/dev/nvidiactl")


def describe_program(command: list[str], environment: Mapping[str, str], commit: str | None) -> Program:
    """Return the program of this process.

    Args:
        command: the command line, word by word.
        environment: the environment variables.
        commit: the result of `find_commit`.
    """
    versions = {"birdie-jax": birdie_jax.__version__, "Python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return Program(
        shlex.join(map(_recorded_word, command)),
        {
            name: "***" if _SECRET_NAME.search(name) else without_secrets(environment[name])
            for name in sorted(environment)
            if _VARIABLES.fullmatch(name)
        },
        versions,
        commit,
        socket.gethostname(),
    )


def _recorded_word(word: str) -> str:
    # For example --password.
    name = word.lstrip("-")
    return word[: len(word) - len(name)] + without_secrets(name)


def find_commit(package: Path = Path(birdie_jax.__file__).parent) -> str | None:
    """Return the commit of a package, followed by " changed" if files of its checkout differ.

    `git archive`, which the launchers use to send a commit, writes its hash into commit.txt. The result is
    None if the package is in neither an archive nor a checkout, or if git does not answer.
    """
    with contextlib.suppress(OSError):
        written = (package / "commit.txt").read_text(encoding="utf-8").strip()
        if re.fullmatch(r"[0-9a-f]{40,}", written):
            return written
    checkout = package.parent
    if not (checkout / ".git").exists():
        return None
    # Without this option git may lock the index: a commit at the same time fails, and a killed git leaves
    # the lock.
    command = ["git", "--no-optional-locks", "-C", str(checkout)]
    command += ["status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"^# branch\.oid ([0-9a-f]{40,})$", done.stdout, re.MULTILINE)
    if found is None:
        return None
    changed = any(not line.startswith("#") for line in done.stdout.splitlines())
    return found[1] + (" changed" if changed else "")


class StartRecorder:
    """A context manager around a run, which prints its start and records it in the workdir.

    If the record cannot be read or written, the error is logged and the run continues.
    """

    def __init__(self, workdir: Workdir, program: Program | None, processes: int):
        """Create the recorder.

        Args:
            workdir: the workdir of the run.
            program: the program of this process; None: this process keeps no record.
            processes: the number of processes of the run.
        """
        self._workdir = workdir
        self._program = program
        self._processes = processes
        self._before: list[Start] = []
        self._start: Start | None = None
        self._outcome: str | None = None
        self._step: int | None = None

    def announce(self, mesh: Mesh, explanation: str) -> None:
        """Print and record the program, its devices and its workdir."""
        if self._program is None:
            return
        if explanation:
            print(explanation, flush=True)
        device = mesh.devices.flat[0]
        self._start = Start(
            began=_now(),
            ended=None,
            outcome=None,
            step=None,
            program=self._program,
            processes=self._processes,
            device=device.device_kind,
            devices=mesh.devices.size,
            mesh=dict(mesh.shape),
        )
        if device.platform == "cpu" and _NVIDIA.exists():
            print(
                "this machine has an NVIDIA GPU that JAX cannot use; install the extra for its driver: "
                f"{shlex.join([sys.executable, '-m', 'pip', 'install', 'birdie-jax[cuda13]'])}, or [cuda12]"
            )
        print(f"{self._program.title}\n{self._start.machine}; writes to {self._workdir.root}")
        print(f"curves: tensorboard --logdir={self._workdir.tensorboard}", flush=True)
        try:
            self._before = read_starts(self._workdir)
        except DataError as error:
            logging.warning("the starts before this one are lost: %s", error)
        self._write()

    def note_outcome(self, outcome: str, step: int) -> None:
        """Record the outcome of the run, as text, and the last completed step."""
        self._outcome, self._step = outcome, step

    def _write(self) -> None:
        starts = [to_plain(start) for start in (*self._before, self._start)]
        try:
            write_json(self._workdir.starts, starts)
        except OSError as error:
            logging.warning("%s: this start is not recorded: %s", self._workdir.starts, error)

    def __enter__(self) -> "StartRecorder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._start is None:
            return
        outcome = self._outcome
        if error is not None:
            outcome = f"failed: {one_line(without_secrets(str(error)) or type(error).__name__, 300)}"
        self._start = replace(self._start, ended=_now(), outcome=outcome, step=self._step)
        self._write()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
