"""The kinds of cases. A case follows from its kind, its number and the seed."""

import random
import shutil
import signal
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.fault_kinds import bit_flips, bucket, clocks, file_faults, kills
from benchmarks.fault_kinds.play import Reference, Step, make_reference, play
from benchmarks.fault_kinds.programs import (
    Program,
    preparation,
    reading,
    regression,
    training,
    training_in_two,
    write_texts,
)
from benchmarks.fault_kinds.starts import run_in_forks
from tests.gcs_server import BUCKET

_DOCUMENTS = 40
# The runs that the cases of a kind disturb, by number. Most are a regression, which starts in a second.
_RUNS = (
    *("regression", "regression", "transformer", "regression", "regression", "hawk", "regression"),
    *("regression", "mamba", "regression", "regression", "regression", "birdie", "regression"),
    *("regression", "regression", "transformer", "regression", "regression", "regression", "workers"),
)
_PREPARATIONS = (*["prepare"] * 4, "prepare with workers")
_FLIPPED_RUNS = ("regression", "regression", "transformer")
_TWO = ("two, the first", "two, the second")


Draw = Callable[[random.Random, Reference], list[Step]]
_DRAWS: dict[str, Draw] = {
    "kill": kills.anywhere,
    "kill-saving": kills.while_saving,
    "kill-restoring": kills.while_restoring,
    "kill-preparing": kills.in_preparation,
    "term": partial(kills.anywhere, number=signal.SIGTERM),
    "term-saving": partial(kills.while_saving, terminate=True),
    "term-restoring": partial(kills.while_restoring, terminate=True),
    "term-preparing": partial(kills.in_preparation, number=signal.SIGTERM),
    "clock": clocks.jumping,
    "kill-one": kills.anywhere,
    "term-one": partial(kills.anywhere, number=signal.SIGTERM),
}
_PROGRAMS = {
    "kill-preparing": _PREPARATIONS,
    "term-preparing": _PREPARATIONS,
    "file": ("regression",),
    "file-run": ("transformer", "hawk"),
    "file-preparing": ("prepare",),
    "flip": _FLIPPED_RUNS,
    "flip-preparing": ("prepare",),
    "flip-text": ("prepare",),
    "kill-one": _TWO,
    "term-one": _TWO,
    "bucket": (*["regression in a bucket"] * 3, "transformer in a bucket"),
}


class Campaign:
    """The cases, and the reference runs. A case makes its reference run at the first use.

    Attributes:
        reference: (name of a program) -> its undisturbed run.
        bug: the function that puts a bug into each process of a case; None for no bug.
    """

    def __init__(self, folder: Path, seed: int):
        """Write the training text of the runs.

        Args:
            folder: an empty folder for all runs.
            seed: the seed of all draws.
        """
        self._folder = folder
        self._seed = seed
        self.bug: Callable[[], None] | None = None
        self._corpus = write_texts(folder / "corpus.jsonl", _DOCUMENTS)
        self.reference: Callable[[str], Reference] = cache(self._make_reference)
        self._template: Callable[[str, bool], Path] = cache(self._make_template)
        self._read: Callable[[Path], Reference] = cache(self._make_reading)
        self._store: Callable[[], bucket.Store] = cache(self._make_store)

    def play(self, kind: str, number: int, program: str = "") -> dict[str, Any]:
        """Play a case and return its record.

        Args:
            kind: the name of its kind.
            number: its number, from 0.
            program: the name of the program; if empty, the kind chooses it by number.
        """
        programs = _PROGRAMS.get(kind, _RUNS)
        program = program or programs[number % len(programs)]
        draws = random.Random(f"{self._seed}/{kind}/{number}")
        folder = self._folder / "case"
        folder.mkdir()
        try:
            if kind in _DRAWS:
                reference = self.reference(program)
                return play(reference, self._with_bug(_DRAWS[kind](draws, reference)), folder)
            if kind == "bucket":
                reference = self.reference(program)
                return play(reference, bucket.failing(draws, self._store()), folder)
            if kind.startswith("file"):
                return self._fail_file(number, program, folder)
            return self._flip(draws, kind, program, folder)
        finally:
            shutil.rmtree(folder)

    def _fail_file(self, number: int, program: str, folder: Path) -> dict[str, Any]:
        reference = self.reference(program)
        fault = file_faults.choose_fault(number, f"{self._seed}/{program}", reference)
        steps = self._with_bug(file_faults.steps_of(fault, reference))
        return play(reference, steps, folder) | {"way": fault.way.name}

    def _flip(self, draws: random.Random, kind: str, program: str, folder: Path) -> dict[str, Any]:
        template = self._template(program, kind != "flip-text")
        reference = self._read(template) if kind == "flip-text" else self.reference(program)
        return bit_flips.flip_and_start(draws, reference, template, folder)

    def _make_reading(self, template: Path) -> Reference:
        program = reading()
        run_in_forks(program.actions(template, False), template.parent)
        return Reference(program, program.end(template), [], [], 0.0)

    def _make_store(self) -> bucket.Store:
        folder = self._folder / "store"
        folder.mkdir()
        return bucket.Store(folder)

    def _with_bug(self, steps: list[Step]) -> list[Step]:
        if self.bug is None:
            return steps
        return [step._replace(prepare=self.bug) for step in steps]

    def _make_reference(self, name: str) -> Reference:
        reference = make_reference(self._program(name), self._folder / "references" / name)
        print(f"{name}: undisturbed {reference.cpu_seconds} s of CPU time", file=sys.stderr, flush=True)
        return reference

    def _make_template(self, name: str, midway: bool) -> Path:
        folder = self._folder / "templates" / f"{name} {'midway' if midway else 'ended'}"
        return bit_flips.make_template(self.reference(name), folder, midway=midway)

    def _program(self, name: str) -> Program:
        match name:
            case "regression":
                return regression()
            case "prepare":
                return preparation(self._corpus)
            case "prepare with workers":
                return preparation(self._corpus, workers=2)
            case "regression in a bucket":
                return bucket.in_bucket(self._store(), regression())
            case "transformer in a bucket":
                self._store().upload(self._template("prepare", False), "text/")
                return bucket.in_bucket(self._store(), training("transformer", f"gs://{BUCKET}/text"))
        text = self._template("prepare", False)
        match name:
            case "two, the first":
                return training_in_two(text, 0)
            case "two, the second":
                return training_in_two(text, 1)
            case "birdie":
                return training("gated_ssm_plus", text, policy="birdie")
            case "workers":
                return training("hawk", text, workers=1)
        return training(name, text)
