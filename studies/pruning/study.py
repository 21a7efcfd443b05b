"""The pruning study: its runs, from text to result, and its page."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from birdie_jax.text.sources import STANDARD_LIBRARY
from birdie_jax.trained_model import model_of_workdir
from studies.pruning.config import NEEDLES, TEXT, TEXT_PRUNED, tunings
from studies.pruning.figures import figures_of
from studies.pruning.measuring import held_out_windows, measure_needles, measure_text
from studies.pruning.plans import SCALES, Run, Scale, Variant, runs_of
from studies.pruning.tables import all_tables
from studies.pruning.text import Corpus, corpus_command, prepare_corpus
from studies.runner import Outcome, Study
from studies.verbs import Clock, Command
from studies.workdirs import is_trained, training_record

_CONFIG_FILE = "studies/pruning/config.py"


@dataclass(frozen=True)
class Pruning(Study[Scale, Run]):
    """Measures the cost of pruning a prompt's tokens. The text is documents, as prepare_data's input."""

    name = "pruning"
    page = "pruning_study.md"
    scales = SCALES
    make_run = Run

    @classmethod
    def default_text(cls, scale: Scale) -> str | None:
        """Return Python's standard library for scales of identifiers."""
        return None if scale.identifiers is None else STANDARD_LIBRARY

    def runs(self) -> Iterator[Run]:
        """Yield the runs of the scale."""
        return runs_of(self.scale)

    @property
    def corpus(self) -> Corpus:
        """The files of the corpus."""
        return Corpus(self.workdirs / self.scale.name / "text")

    def tunings_of(self, run: Run) -> tuple[str, ...]:
        """Return the fine-tunings of a run. Smaller models have none.

        Without `identifiers`, only the first seed has any.
        """
        other_seed = run.seed != self.scale.seeds[0]
        if run.is_smaller or (other_seed and self.scale.identifiers is None):
            return ()
        return tunings(self.scale)

    def variants_of(self, run: Run) -> tuple[Variant, ...]:
        """Return the variants to measure on text for a run, in addition to the dense model."""
        if run.is_smaller:
            return ()
        first = run.seed == self.scale.seeds[0]
        return tuple(variant for variant in self.scale.variants if first or variant.all_seeds)

    def commands_left(self, run: Run) -> Iterator[Command]:
        """Yield the commands that a run still needs. The study itself measures, in its own process."""
        if self.result_file(run).exists():
            return
        if not self.corpus.record.exists():
            yield corpus_command(self.scale, self.text, self.corpus)
        if not is_trained(self.pretrained(run)):
            yield self._pretraining_command(run)
        for what in self.tunings_of(run):
            if not is_trained(self.tuned(run, what)):
                yield self._tuning_command(run, what)

    def _pretraining_command(self, run: Run) -> Command:
        return Command(
            "train",
            (
                f"--config={_CONFIG_FILE}:{run.scale},{run.model},{run.seed}",
                f"--config.data.prepared={self.corpus.prepared}",
                f"--workdir={self.pretrained(run)}",
            ),
        )

    def _tuning_command(self, run: Run, what: str) -> Command:
        files = ()
        if what in (TEXT, TEXT_PRUNED):
            files = (f"--config.finetune.stages.{what}.path={self.corpus.continuations}",)
        return Command(
            "train",
            (
                f"--config={_CONFIG_FILE}:{run.scale},{run.model},{run.seed},{what}",
                f"--config.init.from={self.pretrained(run)}",
                *files,
                f"--workdir={self.tuned(run, what)}",
            ),
        )

    def measure(self, run: Run, clock: Clock, log: Path) -> Outcome:
        """Pre-train and measure a run, then run and measure each of its fine-tunings."""
        text = prepare_corpus(self.scale, self.text, self.corpus, self.run_verb)
        with clock.stage("pretraining"):
            if not is_trained(self.pretrained(run)):
                self.run_verb(self._pretraining_command(run), log)
        with clock.stage("measuring text"):
            losses = self._losses_of_pretrained(run, _write_to(log))
        tuned = {what: self._fine_tune(run, what, clock, log) for what in self.tunings_of(run)}
        found = {
            "text": text,
            "pretraining": _training(self.pretrained(run)),
            "losses": losses,
            "fine_tuned": tuned,
        }
        # Only the pre-trained checkpoint is reused.
        return Outcome(found, [self.tuned(run, what) / "checkpoints" for what in tuned])

    def _losses_of_pretrained(self, run: Run, write: Callable[[str], None]) -> dict[str, Any]:
        trained = model_of_workdir(self.pretrained(run))
        windows = held_out_windows(self.scale, self.pretrained(run), trained)
        cells = self.folder(run) / "cells"
        return measure_text(self.scale, trained, windows, self.variants_of(run), cells, write)

    def _fine_tune(self, run: Run, what: str, clock: Clock, log: Path) -> dict[str, Any]:
        """Fine-tune unless that is done, and measure on text or on items among noise."""
        workdir, scale = self.tuned(run, what), self.scale
        with clock.stage(f"fine-tuning: {what}"):
            if not is_trained(workdir):
                self.run_verb(self._tuning_command(run, what), log)
        with clock.stage(f"measuring: {what}"):
            trained, cells, write = model_of_workdir(workdir), workdir / "cells", _write_to(log)
            if what in (TEXT, TEXT_PRUNED):
                windows = held_out_windows(scale, self.pretrained(run), trained)
                losses = measure_text(scale, trained, windows, (scale.tuned_variant,), cells, write)
                return {"training": _training(workdir), "losses": losses}
            query = what.removeprefix(f"{NEEDLES}_")
            answers = measure_needles(scale, query, trained, cells, write)
            return {"training": _training(workdir), "needles": answers}

    def tables(self, results: Mapping[Run, Mapping[str, Any]]) -> list[str]:
        """Return the sections of the page."""
        return all_tables(self.scale, results)

    def figures(self, results: Mapping[Run, Mapping[str, Any]]) -> Iterator[tuple[str, Figure]]:
        """Yield the figures of the page."""
        return figures_of(self.scale, results)


def _write_to(log: Path) -> Callable[[str], None]:
    def write(line: str) -> None:
        with log.open("a") as output:
            print(line, file=output)

    return write


def _training(workdir: Path) -> dict[str, Any]:
    return training_record(
        workdir,
        lambda name: name.endswith("validation_loss") or name.startswith("task/") or name == "pruned_loss",
    )
