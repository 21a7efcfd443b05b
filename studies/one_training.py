"""A study with one training per run, measured by its validation at every decision."""

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.results import AnyRun
from studies.runner import AnyScale, Outcome, Study
from studies.verbs import Clock, Command
from studies.workdirs import is_trained, read_decisions


@dataclass(frozen=True)
class OneTraining(Study[AnyScale, AnyRun]):
    """A study of `configs/tiny.py` with other settings; its text is what config.data.source may be."""

    @abc.abstractmethod
    def settings(self, run: AnyRun) -> dict[str, Any]:
        """Return the fields of the configuration that a run sets, but for data.source."""

    def _settings(self, run: AnyRun) -> dict[str, Any]:
        return {"data.source": self.text, **self.settings(run)}

    def commands_left(self, run: AnyRun) -> Iterator[Command]:
        """Give the training of a run."""
        workdir = self.pretrained(run)
        if not self.result_file(run).exists() and not is_trained(workdir):
            flags = [f"--config.{name}={value}" for name, value in self._settings(run).items()]
            yield Command("train", ("--config=configs/tiny.py", f"--workdir={workdir}", *flags))

    def measure(self, run: AnyRun, clock: Clock, log: Path) -> Outcome:
        """Train a run, and keep what its decisions measured."""
        with clock.stage("training"):
            for command in self.commands_left(run):
                self.run_verb(command, log)
        found = {"settings": self._settings(run), **read_decisions(self.pretrained(run))}
        return Outcome(found, [self.pretrained(run)])
