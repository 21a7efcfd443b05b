"""A run from its text to its result; started again, it goes on where it was."""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from studies.encoders.config import task_settings
from studies.encoders.folders import CONFIG_FILE, Study
from studies.encoders.kernels import PRETRAINED, kernels_record
from studies.encoders.pilot import Settings, is_pilot_done, pilot_commands_left, settings_of
from studies.encoders.plans import Run
from studies.encoders.text import TEST, TRAIN, VALIDATION, prepare_corpus
from studies.evaluations import evaluate_command, measured
from studies.results import read_results as results_of_scale
from studies.results import result_file, write_result
from studies.verbs import Clock, Command, StudyError
from studies.workdirs import is_trained, last_step, read_metric_lines

FORMAT_VERSION = 1
AGREEMENT = "agreement"
_VALIDATION_LOSS = "validation_loss"


def read_results(results: Path, scale: str) -> dict[Run, dict[str, Any]]:
    """Return the results of a scale that are there.

    Raises:
        StudyError: a file is of another format.
    """
    return results_of_scale(results, scale, FORMAT_VERSION, Run)


def pretraining_command(study: Study, run: Run, settings: Settings) -> Command:
    """Return the command that pre-trains a run with what was chosen for its cell."""
    return Command(
        "train",
        (
            f"--config={CONFIG_FILE}:{run.scale},{run.model},{run.seed}",
            f"--config.data.prepared={study.corpus.prepared}",
            *settings.flags(),
            f"--workdir={study.pretrained(run)}",
        ),
    )


def tuning_command(study: Study, run: Run, settings: Settings, task: str, rate: float) -> Command:
    """Return the command that fine-tunes a run, which was pre-trained with `settings`, on a task."""
    return Command(
        "train",
        (
            f"--config={CONFIG_FILE}:{run.scale},{run.model},{run.seed},{task},{rate:g}",
            f"--config.init.from={study.pretrained(run)}",
            f"--config.finetune.stages.{task}.path={study.corpus.samples(task, TRAIN)}",
            f"--config.eval.tasks.{task}.path={study.corpus.samples(task, VALIDATION)}",
            *settings.flags_of_model(),
            f"--workdir={study.tuned_with(run, task, rate)}",
        ),
    )


def rates_of(study: Study, run: Run, task: str) -> tuple[float, ...]:
    """Return the learning rates with which a run is fine-tuned on a task.

    With the first seed of a cell the whole grid; with the others the rate that was chosen with the first.

    Raises:
        StudyError: the run with the first seed has no result yet.
    """
    first = run.first_of_its_cell
    if run == first:
        return study.scale.tuning_rates
    file = result_file(study.results, first)
    if not file.exists():
        raise StudyError(
            f"{run.name}: needs the learning rates that {first.name} chooses, which has no result: {file}"
        )
    return (read_results(study.results, run.scale)[first]["fine_tuned"][task]["learning_rate"],)


def commands_left(study: Study, run: Run) -> Iterator[Command]:
    """Give the commands that a run still needs but for those that measure, which need what these leave.

    Where its cell's pilot is not done, those of the pilot alone: it decides what the others are. Where the
    run with the first seed of its cell has no result, no fine-tuning.
    """
    if result_file(study.results, run).exists():
        return
    if not is_pilot_done(study, run.model):
        yield from pilot_commands_left(study, run.model)
        return
    settings = settings_of(study, run.model, _log(study, run))
    if not is_trained(study.pretrained(run)):
        yield pretraining_command(study, run, settings)
    first = run.first_of_its_cell
    if run != first and not result_file(study.results, first).exists():
        return
    for task in study.scale.tasks:
        for rate in rates_of(study, run, task):
            if not is_trained(study.tuned_with(run, task, rate)):
                yield tuning_command(study, run, settings, task, rate)


def run_to_its_result(study: Study, run: Run) -> Path:
    """Do what is left of a run, and write its result; return the file.

    Raises:
        StudyError: a command failed, the text cannot be used, or what the run needs of the one with the
            first seed of its cell is not there.
    """
    file = result_file(study.results, run)
    if file.exists():
        return file
    folder = study.folder(run)
    log, clock = _log(study, run), Clock(folder / "seconds.json")
    text = prepare_corpus(study.scale, study.text, study.corpus, study.run_verb)
    pretrained = study.pretrained(run)
    with clock.stage("pilot"):
        settings = settings_of(study, run.model, log)
    with clock.stage("pretraining"):
        if not is_trained(pretrained):
            study.run_verb(pretraining_command(study, run, settings), log)
    with clock.stage("measuring"):
        agreement = {AGREEMENT: {"task": "agreement", "path": str(study.corpus.agreement)}}
        as_it_is = _measure(study, agreement, pretrained, log)
    tuned = {}
    for task in study.scale.tasks:
        rates = rates_of(study, run, task)
        with clock.stage(f"{task}_tuning"):
            for rate in rates:
                if not is_trained(study.tuned_with(run, task, rate)):
                    study.run_verb(tuning_command(study, run, settings, task, rate), log)
        validated = {
            rate: _last(study.tuned_with(run, task, rate), f"task/{task}/accuracy") for rate in rates
        }
        # Of equals the smaller rate.
        chosen = min(validated, key=lambda rate: (-validated[rate], rate))
        with clock.stage("measuring"):
            asked = {**task_settings(task), "path": str(study.corpus.samples(task, TEST))}
            test = _measure(study, {task: asked}, study.tuned_with(run, task, chosen), log)
        tuned[task] = {
            "validation": {f"{rate:g}": score for rate, score in validated.items()},
            "learning_rate": chosen,
            "steps": _steps(study.tuned_with(run, task, chosen)),
            "test": test[task],
        }
    task = study.scale.kernels_after
    compared = {
        PRETRAINED: pretrained,
        task: study.tuned_with(run, task, tuned[task]["learning_rate"]),
    }
    found = {
        "text": text,
        "pretraining": _pretraining_record(pretrained),
        "pretrained": as_it_is,
        "fine_tuned": tuned,
        "kernels": kernels_record(run, compared),
    }
    write_result(study.results, run, FORMAT_VERSION, found, clock.seconds)
    for task in study.scale.tasks:
        for rate in rates_of(study, run, task):
            # Only what was pre-trained is gone on with.
            shutil.rmtree(study.tuned_with(run, task, rate) / "checkpoints", ignore_errors=True)
    return file


def _log(study: Study, run: Run) -> Path:
    return study.folder(run) / "log.txt"


def _measure(
    study: Study, tasks: Mapping[str, Mapping[str, Any]], workdir: Path, log: Path
) -> dict[str, Any]:
    """Measure the last checkpoint on tasks unless that is done; return what is kept of it."""
    step = _steps(workdir)
    found = measured(workdir, step, list(tasks))
    if found is None:
        study.run_verb(evaluate_command(tasks, workdir, step), log)
        found = measured(workdir, step, list(tasks))
    assert found is not None
    return found


def _steps(workdir: Path) -> int:
    """Return the steps of a run that has ended; what its stages came to where they decide."""
    summary = json.loads((workdir / "summary.json").read_text())
    return summary.get("num_steps") or last_step(workdir)


def _last(workdir: Path, metric: str) -> float:
    """Return the last value of a metric of a run."""
    return [line[metric] for line in read_metric_lines(workdir) if metric in line][-1]


def _pretraining_record(workdir: Path) -> dict[str, Any]:
    """Return the configuration, the losses by step and the validation losses by step."""
    lines = read_metric_lines(workdir)
    names = {name for line in lines for name in line if name.endswith(_VALIDATION_LOSS)}
    return {
        "config": json.loads((workdir / "config.json").read_text()),
        "summary": json.loads((workdir / "summary.json").read_text()),
        "losses": [(line["step"], line["loss"]) for line in lines if "loss" in line],
        "validation_losses": {
            name: [(line["step"], line[name]) for line in lines if name in line] for name in sorted(names)
        },
    }
