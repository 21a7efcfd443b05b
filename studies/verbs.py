"""Runs the program's verbs as child processes, and adds up their time across interruptions."""

import contextlib
import json
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from birdie_jax.child_process import run_child
from birdie_jax.errors import BirdieError
from birdie_jax.storage import write_json

REPOSITORY = Path(__file__).resolve().parents[1]
_CLOCK_SECONDS = 10.0
_SHOWN_CHARACTERS = 2000


class StudyError(BirdieError):
    """A part of a study failed; the message names the command and its log, or the file."""


class Command(NamedTuple):
    """A call of a verb.

    Attributes:
        verb: the name of its module in `birdie_jax`.
        arguments: its flags.
    """

    verb: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join(["python", "-m", f"birdie_jax.{self.verb}", *self.arguments])


# (command, file for its output) -> runs the command to its end; raises StudyError if it fails.
RunVerb = Callable[[Command, Path], None]


def run_verb(command: Command, log: Path) -> None:
    """Run a command on the cores of this process. The command ends if this process ends.

    Raises:
        StudyError: the command exits with a status other than 0.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as output:
        print(f"\n{command}", file=output, flush=True)
        program = [sys.executable, "-m", f"birdie_jax.{command.verb}", *command.arguments]
        status = run_child(program, output, REPOSITORY)
    if status:
        end = log.read_text(errors="replace")[-_SHOWN_CHARACTERS:]
        raise StudyError(f"{command}\nended with status {status}; {log} ends with:\n{end}")


class Clock:
    """Counts the wall-clock seconds of a run's stages over all attempts, and keeps them in a file."""

    def __init__(self, file: Path):
        """Continue from the seconds in `file`, if it exists."""
        self._file = file
        self.seconds: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time until the end of the block, even if it fails or the process is killed."""
        begin, before = time.monotonic(), self.seconds.get(name, 0.0)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        ended = threading.Event()

        def save() -> None:
            self.seconds[name] = before + time.monotonic() - begin
            write_json(self._file, self.seconds)

        def save_often() -> None:
            while not ended.wait(_CLOCK_SECONDS):
                save()

        saver = threading.Thread(target=save_often, daemon=True)
        saver.start()
        try:
            yield
        finally:
            ended.set()
            saver.join()
            save()


def cores() -> list[int]:
    """Return the cores that this process and its children may use."""
    return sorted(os.sched_getaffinity(0))
