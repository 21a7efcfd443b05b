"""The runner of all studies: flags, runs one after the other, results and the page.

    python -m studies.retrieval --scale=small --results=results/retrieval
    python -m studies.retrieval --scale=small --results=results/retrieval --list
    python -m studies.retrieval --scale=small --results=results/retrieval --tables

A study is a subclass of `Study` that defines its runs, the measurement of a run, and the tables and figures
of the results. You can stop a study at any instant; the same command resumes it. A finished run is one file
in --results and does not run again. --tables requires only the results. It writes the part of the page
between `<!-- begin STUDY.SCALE -->` and `<!-- end STUDY.SCALE -->`, and the figures next to the page.
"""

import abc
import argparse
import datetime
import fnmatch
import io
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

from birdie_jax.compiled_programs import cache_compiled_programs
from birdie_jax.errors import BirdieError
from birdie_jax.reporting.page_text import duration
from birdie_jax.storage import write_whole
from birdie_jax.storage.cache_folder import cache_folder
from studies.figure_style import figure_style
from studies.progress import ListedRun, Progress, expected_seconds, runs_table, seconds_of
from studies.results import AnyRun, circumstances, read_results, result_file, write_result
from studies.tables import section
from studies.verbs import REPOSITORY, Clock, Command, RunVerb, StudyError, run_verb

_DPI = 90
_COLOURS = 128
_WIDTH = 120
_NAMED_RUNS = 8


class StudyScale(Protocol):
    """The sizes of a study's runs."""

    @property
    def name(self) -> str: ...  # noqa: D102


AnyScale = TypeVar("AnyScale", bound=StudyScale)


class Outcome(NamedTuple):
    """The outcome of a finished run.

    Attributes:
        found: the measurements, in the form of `results.write_result`.
        disposable: the folders that are not needed after the result is written. They include the run's
            folder if nothing in it can be reused, because its clock would add this run to the next one.
    """

    found: Mapping[str, Any]
    disposable: Sequence[Path] = ()


@dataclass(frozen=True)
class Study(abc.ABC, Generic[AnyScale, AnyRun]):
    """A scale of a study, and its folders.

    Attributes:
        scale: the scale.
        results: the folder of the results.
        workdirs: the folder of prepared text and of the runs' workdirs.
        text: the documents of the corpus, in the study's form.
        run_verb: the function that runs a verb of the program.
    """

    scale: AnyScale
    results: Path
    workdirs: Path
    text: str
    run_verb: RunVerb = field(default=run_verb, kw_only=True)

    name: ClassVar[str]
    """The name of the study, as in `python -m studies.NAME`."""
    page: ClassVar[str]
    """The page that --tables writes, in docs/measurements; see `page_of`."""
    scales: ClassVar[Mapping[str, Any]]
    """The scales by name."""
    make_run: ClassVar[Any]
    """The type of a run, made from its fields."""
    has_text: ClassVar[bool] = True
    """Whether the study reads a text."""

    @abc.abstractmethod
    def runs(self) -> Iterable[AnyRun]:
        """Return the runs of the scale, the most decisive first."""

    @abc.abstractmethod
    def measure(self, run: AnyRun, clock: Clock, log: Path) -> Outcome:
        """Finish a run, and return its measurements.

        Args:
            run: the run.
            clock: counts the seconds of each stage.
            log: the file for the output of commands.

        Raises:
            StudyError: a command failed, or the text cannot be used.
        """

    @abc.abstractmethod
    def tables(self, results: Mapping[AnyRun, Mapping[str, Any]]) -> list[str]:
        """Return the sections of the page, in Markdown."""

    @abc.abstractmethod
    def figures(self, results: Mapping[AnyRun, Mapping[str, Any]]) -> Iterator[tuple[str, Figure]]:
        """Yield the names and figures that the results allow."""

    def commands_left(self, run: AnyRun) -> Iterable[Command]:
        """Return the commands that an unfinished run still needs, as far as they are known."""
        del run
        return ()

    def title(self, run: AnyRun) -> str:
        """Return a description of a run; empty if its name is enough."""
        del run
        return ""

    @classmethod
    def default_text(cls, scale: AnyScale) -> str | None:
        """Return the text of a scale without --text; None if --text is required."""
        del scale
        return None

    @classmethod
    def page_of(cls, scale: AnyScale) -> str:
        """Return the page of a scale, in docs/measurements."""
        del scale
        return cls.page

    def folder(self, run: AnyRun) -> Path:
        """Return the folder of a run's workdirs."""
        return self.workdirs / self.scale.name / run.name

    def pretrained(self, run: AnyRun) -> Path:
        """Return the workdir of a run's pre-training."""
        return self.folder(run) / "pretraining"

    def tuned(self, run: AnyRun, name: str) -> Path:
        """Return the workdir of a run's fine-tuning."""
        return self.folder(run) / name

    def log(self, run: AnyRun) -> Path:
        """Return the log file of a run's commands."""
        return self.folder(run) / "log.txt"

    def result_file(self, run: AnyRun) -> Path:
        """Return the file of a run's result."""
        return result_file(self.results, run)

    def read_results(self) -> dict[AnyRun, dict[str, Any]]:
        """Return the available results of the scale.

        Raises:
            StudyError: a file is damaged or of another format.
        """
        return read_results(self.results, self.scale.name, self.make_run)

    def finish(self, run: AnyRun) -> Path:
        """Finish a run and write its result; return the file.

        Raises:
            StudyError: see `measure`.
        """
        file = self.result_file(run)
        if file.exists():
            return file
        clock = Clock(self.folder(run) / "seconds.json")
        found, disposable = self.measure(run, clock, self.log(run))
        under = circumstances() | {"seconds": clock.seconds}
        write_result(file, {"study": self.name, "run": run._asdict(), "circumstances": under}, found)
        for folder in disposable:
            shutil.rmtree(folder, ignore_errors=True)
        return file

    def print_list(self, runs: Sequence[AnyRun]) -> None:
        """Print a table of runs; for a single unfinished run, also the commands that it still needs."""
        results = self.read_results()
        left = {run: list(self.commands_left(run)) for run in runs if run not in results}
        every = {
            run: ListedRun(
                run.name,
                self.title(run),
                seconds_of(results[run]) if run in results else None,
                len(left.get(run, ())),
            )
            for run in self.runs()
        }
        expected = expected_seconds([*every.values()])
        table = runs_table([every[run] for run in runs], expected)
        Console(width=_WIDTH, highlight=False, soft_wrap=True).print(table)
        if left and not expected:
            print("The duration of a run is unknown: no run of this scale has finished.")
        elif len(left) > 1:
            seconds = sum(expected[run.name] for run in left)
            print(f"{len(left)} runs left: about {duration(seconds)}")
        if len(runs) == 1:
            for command in left.get(runs[0], ()):
                print(command)

    def page_text(self, results: Mapping[AnyRun, Mapping[str, Any]], figures: Sequence[Path]) -> str:
        """Return the tables and figures of the scale, and the missing runs with a command to run them.

        Args:
            results: the available results.
            figures: the files of the figures, relative to the page.
        """
        parts = [*self.tables(results)]
        parts += [f"![{path.stem.replace('_', ' ')}]({path})" for path in figures]
        planned = list(self.runs())
        missing = sum(run not in results for run in planned)
        if missing:
            command = ["python", "-m", f"studies.{self.name}", f"--scale={self.scale.name}"]
            default = self.default_text(self.scale)
            recorded = {result["text"]["text"] for result in results.values() if "text" in result}
            if self.text and self.text != default:
                command.append(f"--text={self.text}")
            elif self.has_text and (default is None or recorded - {default}):
                # The missing runs need the text of the others, which has another path on each machine.
                command.append("--text=corpus.jsonl")
            command.append(f"--results={self.results}")
            parts.append(
                section(
                    f"Not run: {missing} of {len(planned)}",
                    "This command runs them; with `--list` it prints them, and with `--only=NAME` it runs "
                    "one:\n\n"
                    f"```bash\n{shlex.join(command)}\n```",
                )
            )
        return "\n\n".join(parts)

    def write_page(self, page: Path) -> None:
        """Write tables and figures of the available results to the page; create the page if it is missing.

        The figures are files next to the page.

        Raises:
            StudyError: a result cannot be read, or the page lacks its marks. Then nothing is written.
        """
        results = self.read_results()
        # Check the page before drawing any figure.
        before, after = split_at_marks(page, f"{self.name}.{self.scale.name}")
        drawn = []
        with figure_style():
            for name, figure in self.figures(results) if results else ():
                drawn.append(page.parent / f"{page.stem}_{self.scale.name}_{name}.png")
                save_figure(figure, drawn[-1])
        text = self.page_text(results, [Path(path.name) for path in drawn])
        page.parent.mkdir(parents=True, exist_ok=True)
        write_whole(page, f"{before}\n\n{text.strip()}\n\n{after}".encode())
        print(f"{page}: {len(results)} results, {len(drawn)} figures")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG with few colours, which has a third of the size."""
    drawn, reduced = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(
            reduced, format="PNG", optimize=True
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, reduced.getvalue())


def split_at_marks(page: Path, mark: str) -> tuple[str, str]:
    """Return the page up to the begin mark and from the end mark; only the marks if there is no page.

    Raises:
        StudyError: the page lacks the marks.
    """
    begin, end = f"<!-- begin {mark} -->", f"<!-- end {mark} -->"
    if not page.exists():
        return begin, end + "\n"
    before, found_begin, rest = page.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise StudyError(
            f"{page}: lacks the lines {begin} and {end}; allowed: a page with both, or a new one, by --page"
        )
    return before + begin, end + after


def main(
    study: type[Study[Any, Any]],
    description: str | None,
    final: Callable[[Any, Any, Path], Path] | None = None,
) -> None:
    """Parse the flags of a study, and run, list or draw.

    Args:
        study: the study.
        description: the docstring of its command.
        final: (study, run, file) -> measures a finished run on the file of --final, and returns the file of
            the run's result.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", required=True, choices=list(study.scales))
    parser.add_argument("--results", required=True, type=Path, help="folder of results, one file per run")
    parser.add_argument("--workdirs", type=Path, help="folder of text and checkpoints; default: a cache")
    parser.add_argument("--only", default="*", help="pattern for the names of runs, as --list prints them")
    if study.has_text:
        parser.add_argument("--text", help="the documents of the corpus")
    if final:
        parser.add_argument("--final", type=Path, help="questions to measure finished runs on, once")
    parser.add_argument(
        "--list", action="store_true", help="print finished runs; for one run, what is left"
    )
    parser.add_argument("--tables", action="store_true", help="write tables and figures without running")
    parser.add_argument("--page", type=Path, help="page for --tables, with its figures")
    given = parser.parse_args()
    scale = study.scales[given.scale]
    text = (given.text or study.default_text(scale)) if study.has_text else ""
    if text is None and not given.tables:
        sys.exit("--text: is not given; allowed: the documents of the corpus")
    workdirs = (given.workdirs or cache_folder() / "studies" / study.name).absolute()
    chosen = study(scale, given.results, workdirs, text or "")
    try:
        if given.tables:
            chosen.write_page(given.page or REPOSITORY / "docs/measurements" / study.page_of(scale))
            return
        cache_compiled_programs()
        runs = choose_runs(chosen.runs(), given.only)
        if given.list:
            chosen.print_list(runs)
            return
        if final and given.final:
            for run in runs:
                if chosen.result_file(run).exists():
                    print(f"{run.name}: {final(chosen, run, given.final)}", flush=True)
            return
        results = chosen.read_results()
        took = [seconds_of(results[run]) for run in runs if run in results]
        progress = Progress(len(runs), took, lambda: datetime.datetime.now().astimezone())
        for run in runs:
            if run in results:
                continue
            print(progress.line(run.name, chosen.title(run)), flush=True)
            print(f"{run.name}: {chosen.finish(run)}", flush=True)
            progress.finished(seconds_of(chosen.read_results()[run]))
    except BirdieError as error:
        sys.exit(f"studies.{study.name}: {error}")


def choose_runs(runs: Iterable[AnyRun], pattern: str) -> list[AnyRun]:
    """Return the runs whose names match the pattern; exit with an error if none matches."""
    every = list(runs)
    chosen = [run for run in every if fnmatch.fnmatchcase(run.name, pattern)]
    if not chosen:
        names = ", ".join(run.name for run in every[:_NAMED_RUNS])
        more = ", ...; --list prints all" if len(every) > _NAMED_RUNS else ""
        sys.exit(f"--only={pattern}: matches no run; allowed: a pattern of {names}{more}")
    return chosen
