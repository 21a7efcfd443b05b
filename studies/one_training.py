"""Studies with one training per run. The validation at every decision is the result."""

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
    """A study of `configs/tiny.py` with other settings. Its text is a value of config.data.source."""

    @abc.abstractmethod
    def settings(self, run: AnyRun) -> dict[str, Any]:
        """Return the configuration fields that a run sets, except data.source."""

    def _settings(self, run: AnyRun) -> dict[str, Any]:
        return {"data.source": self.text, **self.settings(run)}

    def commands_left(self, run: AnyRun) -> Iterator[Command]:
        """Yield the training of a run if it is not done."""
        workdir = self.pretrained(run)
        if not self.result_file(run).exists() and not is_trained(workdir):
            flags = [f"--config.{name}={value}" for name, value in self._settings(run).items()]
            yield Command("train", ("--config=configs/tiny.py", f"--workdir={workdir}", *flags))

    def measure(self, run: AnyRun, clock: Clock, log: Path) -> Outcome:
        """Train a run, and return the measurements of its decisions."""
        with clock.stage("training"):
            for command in self.commands_left(run):
                self.run_verb(command, log)
        found = {"settings": self._settings(run), **read_decisions(self.pretrained(run))}
        return Outcome(found, [self.folder(run)])
