"""A scale of the study, and where its text and its runs lie."""

from dataclasses import dataclass
from pathlib import Path

from studies.encoders.plans import Run, Scale
from studies.encoders.text import Corpus
from studies.study import StudyFolders

CONFIG_FILE = "studies/encoders/config.py"


@dataclass(frozen=True)
class Study(StudyFolders[Scale]):
    """A scale of the study, and its folders; its text is JSON lines with the fields `text` and `source`."""

    @property
    def corpus(self) -> Corpus:
        """The files of the corpus."""
        return Corpus(self.workdirs / self.scale.name / "text")

    def tuned_with(self, run: Run, task: str, learning_rate: float) -> Path:
        """Return the workdir of a fine-tuning of a run on a task."""
        return self.tuned(run, f"{task}_{learning_rate:g}")
