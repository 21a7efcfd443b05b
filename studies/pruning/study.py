"""A run from its text to its result; started again, it goes on where it was."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from birdie_jax.trained_model import model_of_workdir
from studies import results as studies
from studies.pruning.config import NEEDLES, TEXT, TEXT_PRUNED, tunings
from studies.pruning.losses import flow_through_layers, held_out_windows, measure_text
from studies.pruning.needles import measure_needles
from studies.pruning.plans import Run, Scale, Variant
from studies.pruning.text import Corpus, corpus_command, prepare_corpus
from studies.results import result_file, write_result
from studies.study import StudyFolders
from studies.verbs import Clock, Command
from studies.workdirs import is_trained, read_metric_lines

FORMAT_VERSION = 1
_CONFIG_FILE = "studies/pruning/config.py"
_VALIDATION_LOSS = "validation_loss"


@dataclass(frozen=True)
class Study(StudyFolders[Scale]):
    """A scale of the study, and its folders; its text is documents as prepare_data takes them."""

    @property
    def corpus(self) -> Corpus:
        """The files of the corpus."""
        return Corpus(self.workdirs / self.scale.name / "text")


def tunings_of(study: Study, run: Run) -> tuple[str, ...]:
    """Return what a run is fine-tuned on: only the first seed is, and no smaller model."""
    if run.is_smaller or run.seed != study.scale.seeds[0]:
        return ()
    return tunings(study.scale)


def variants_of(study: Study, run: Run) -> tuple[Variant, ...]:
    """Return what is measured of a run on text beside the dense model."""
    if run.is_smaller:
        return ()
    first = run.seed == study.scale.seeds[0]
    return tuple(variant for variant in study.scale.variants if first or variant.all_seeds)


def read_results(results: Path, scale: str) -> dict[Run, dict[str, Any]]:
    """Return the results of a scale that are there.

    Raises:
        StudyError: a file is of another format.
    """
    return studies.read_results(results, scale, FORMAT_VERSION, Run)


def pretraining_command(study: Study, run: Run) -> Command:
    """Return the command that pre-trains a run."""
    return Command(
        "train",
        (
            f"--config={_CONFIG_FILE}:{run.scale},{run.model},{run.seed}",
            f"--config.data.prepared={study.corpus.prepared}",
            f"--workdir={study.pretrained(run)}",
        ),
    )


def tuning_command(study: Study, run: Run, what: str) -> Command:
    """Return the command that fine-tunes a pre-trained run."""
    files = ()
    if what in (TEXT, TEXT_PRUNED):
        files = (f"--config.finetune.stages.{what}.path={study.corpus.continuations}",)
    return Command(
        "train",
        (
            f"--config={_CONFIG_FILE}:{run.scale},{run.model},{run.seed},{what}",
            f"--config.init.from={study.pretrained(run)}",
            *files,
            f"--workdir={study.tuned(run, what)}",
        ),
    )


def commands_left(study: Study, run: Run) -> Iterator[Command]:
    """Give the commands that a run still needs; what measures is done between them, by the study itself."""
    if result_file(study.results, run).exists():
        return
    if not study.corpus.record.exists():
        yield corpus_command(study.scale, study.text, study.corpus)
    if not is_trained(study.pretrained(run)):
        yield pretraining_command(study, run)
    for what in tunings_of(study, run):
        if not is_trained(study.tuned(run, what)):
            yield tuning_command(study, run, what)


def run_to_its_result(study: Study, run: Run) -> Path:
    """Do what is left of a run, and write its result; return the file.

    Raises:
        StudyError: a command failed, or the text cannot be used.
    """
    file = result_file(study.results, run)
    if file.exists():
        return file
    folder = study.folder(run)
    log, clock = folder / "log.txt", Clock(folder / "seconds.json")
    text = prepare_corpus(study.scale, study.text, study.corpus, study.run_verb)
    with clock.stage("pretraining"):
        if not is_trained(study.pretrained(run)):
            study.run_verb(pretraining_command(study, run), log)
    with clock.stage("measuring text"):
        found = _measure_pretrained(study, run, log)
    found["fine_tuned"] = {
        what: _fine_tune(study, run, what, clock, log) for what in tunings_of(study, run)
    }
    found = {"text": text, "pretraining": _training_record(study.pretrained(run)), **found}
    write_result(study.results, run, FORMAT_VERSION, found, clock.seconds)
    for what in tunings_of(study, run):
        # Only what was pre-trained is gone on with.
        shutil.rmtree(study.tuned(run, what) / "checkpoints", ignore_errors=True)
    return file


def _measure_pretrained(study: Study, run: Run, log: Path) -> dict[str, Any]:
    scale, pretrained = study.scale, study.pretrained(run)
    trained = model_of_workdir(pretrained)
    windows = held_out_windows(scale, pretrained, trained)
    variants = variants_of(study, run)
    cells = study.folder(run) / "cells"
    found: dict[str, Any] = {
        "losses": measure_text(scale, trained, windows, variants, cells, _tell_in(log)),
    }
    if not run.is_smaller:
        flow = study.folder(run) / "flow.json"
        found["flow"] = flow_through_layers(scale, trained, windows, flow)
    return found


def _fine_tune(study: Study, run: Run, what: str, clock: Clock, log: Path) -> dict[str, Any]:
    """Fine-tune unless that is done, and measure: on text, or on items among noise."""
    workdir, scale = study.tuned(run, what), study.scale
    with clock.stage(f"fine-tuning: {what}"):
        if not is_trained(workdir):
            study.run_verb(tuning_command(study, run, what), log)
    with clock.stage(f"measuring: {what}"):
        trained = model_of_workdir(workdir)
        cells = workdir / "cells"
        if what in (TEXT, TEXT_PRUNED):
            windows = held_out_windows(scale, study.pretrained(run), trained)
            measured = measure_text(scale, trained, windows, (scale.tuned_variant,), cells, _tell_in(log))
            return {"training": _training_record(workdir), "losses": measured}
        query = what.removeprefix(f"{NEEDLES}_")
        answers = measure_needles(scale, query, trained, cells, _tell_in(log))
        return {"training": _training_record(workdir), "needles": answers}


def _tell_in(log: Path):
    def tell(line: str) -> None:
        with log.open("a") as output:
            print(line, file=output)

    return tell


def _training_record(workdir: Path) -> dict[str, Any]:
    """Return the configuration, the losses by step and what was validated by step."""
    lines = read_metric_lines(workdir)
    names = {name for line in lines for name in line if name.endswith(_VALIDATION_LOSS)}
    names |= {name for line in lines for name in line if name.startswith("task/")}
    names |= {"pruned_loss"} & {name for line in lines for name in line}
    return {
        "config": json.loads((workdir / "config.json").read_text()),
        "summary": json.loads((workdir / "summary.json").read_text()),
        "losses": [(line["step"], line["loss"]) for line in lines if "loss" in line],
        "curves": {
            name: [(line["step"], line[name]) for line in lines if name in line] for name in sorted(names)
        },
    }
