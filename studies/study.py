"""What every study has: a scale, its folders, and what is left of its runs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from studies.results import StudyRun, result_file
from studies.verbs import Command, RunVerb, run_verb


class StudyScale(Protocol):
    """The sizes of a study's runs."""

    @property
    def name(self) -> str: ...  # noqa: D102


AnyScale = TypeVar("AnyScale", bound=StudyScale)


@dataclass(frozen=True)
class StudyFolders(Generic[AnyScale]):
    """A scale of a study, and its folders.

    Attributes:
        scale: the scale.
        results: the folder of the results.
        workdirs: the folder of prepared text and of the runs' workdirs.
        text: the documents of the corpus; the study says in which form.
        run_verb: the function that runs a verb of the program.
    """

    scale: AnyScale
    results: Path
    workdirs: Path
    text: str
    run_verb: RunVerb = run_verb

    def folder(self, run: StudyRun) -> Path:
        """Return the folder of a run's workdirs."""
        return self.workdirs / self.scale.name / run.name

    def pretrained(self, run: StudyRun) -> Path:
        """Return the workdir of a run's pre-training."""
        return self.folder(run) / "pretraining"

    def tuned(self, run: StudyRun, name: str) -> Path:
        """Return the workdir of a fine-tuning of a run."""
        return self.folder(run) / name


def list_run(
    results: Path, run: StudyRun, commands_left: Callable[[], Iterable[Command]], title: str = ""
) -> None:
    """Print where a run's result is, or the commands that it still needs."""
    file = result_file(results, run)
    if file.exists():
        print(f"# {run.name}: finished, {file}")
        return
    print(f"# {run.name}: {f'{title}; ' if title else ''}left:")
    for command in commands_left():
        print(command)
