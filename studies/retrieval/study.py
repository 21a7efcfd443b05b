"""A run from its text to its result; started again, it goes on where it was."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from birdie_jax.storage import write_json
from birdie_jax.tasks import make_task
from birdie_jax.text import load_tokenizer
from studies.evaluations import evaluate_command, measured
from studies.results import StudyRun, result_file
from studies.retrieval import fine_tuning, measuring
from studies.retrieval.baselines import mean_commonest_digits
from studies.retrieval.fine_tuning import EXTRACTION, PHONEBOOK, TEST, TUNINGS, VALIDATION
from studies.retrieval.matrix import Run
from studies.retrieval.plans import Scale
from studies.retrieval.pretraining import pretraining_command, pretraining_record
from studies.retrieval.result import SQUAD, squad_file, write_result
from studies.retrieval.text import Corpus, corpus_command, prepare_corpus
from studies.study import StudyFolders
from studies.verbs import Clock, Command
from studies.workdirs import is_trained, last_step

# Of the answers, exactly right.
_MILESTONES = {"half": 0.5, "nine_tenths": 0.9}


@dataclass(frozen=True)
class Study(StudyFolders[Scale]):
    """A scale of the study, and its folders; its text is documents as prepare_data takes them."""

    @property
    def corpus(self) -> Corpus:
        """The files of the corpus."""
        return Corpus(
            self.workdirs / f"text_{self.scale.pieces}",
            self.workdirs / self.scale.pretraining_name / "questions",
        )

    def pretrained(self, run: StudyRun) -> Path:
        """Return the workdir of a run's pre-training, which may be that of another scale."""
        return self.workdirs / self.scale.pretraining_name / run.name / "pretraining"

    def tuned_with(self, run: Run, tuning: str, learning_rate: float) -> Path:
        """Return the workdir of a fine-tuning of a run."""
        return self.tuned(run, f"{tuning}_{learning_rate:g}")


def commands_left(study: Study, run: Run) -> list[Command]:
    """Return the commands that a run still needs, as far as they are known.

    The test waits for what the validation chooses: its step and rate are named when that is done.
    """
    if result_file(study.results, run).exists():
        return []
    corpus, left = study.corpus, []
    if not corpus.record.exists():
        left.append(corpus_command(study.scale, study.text, corpus))
    pretrained = study.pretrained(run)
    if not is_trained(pretrained):
        left.append(pretraining_command(run, corpus.prepared, pretrained))
    tasks = measuring.pretrained_tasks(study.scale, corpus)
    if not is_trained(pretrained) or measured(pretrained, last_step(pretrained), list(tasks)) is None:
        left.append(evaluate_command(tasks, pretrained))
    for tuning in TUNINGS:
        for rate in fine_tuning.grid_of(study.scale, tuning).learning_rates:
            if not is_trained(study.tuned_with(run, tuning, rate)):
                left.append(_tuning_command(study, run, tuning, rate))
    return left


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
    corpus = study.corpus
    text = prepare_corpus(study.scale, study.text, corpus, study.run_verb)
    pretrained = study.pretrained(run)
    if not is_trained(pretrained):
        with clock.stage("pretraining"):
            study.run_verb(pretraining_command(run, corpus.prepared, pretrained), log)
    with clock.stage("measuring"):
        tasks = measuring.pretrained_tasks(study.scale, corpus)
        step = last_step(pretrained)
        as_it_is = _measure(study, tasks, pretrained, step, log)
    tuned = {tuning: _tune(study, run, tuning, clock, log) for tuning in TUNINGS}
    found = {
        "text": text,
        "pretraining": pretraining_record(pretrained),
        "pretrained": as_it_is,
        "fine_tuned": tuned,
    }
    write_result(study.results, run, found, clock.seconds)
    for tuning in TUNINGS:
        for rate in fine_tuning.grid_of(study.scale, tuning).learning_rates:
            checkpoints = study.tuned_with(run, tuning, rate) / "checkpoints"
            if rate != tuned[tuning]["chosen"]["learning_rate"] and checkpoints.exists():
                shutil.rmtree(checkpoints)
    return file


def ask_squad(study: Study, run: Run, questions: Path) -> Path:
    """Ask a finished run, fine-tuned on passages, the questions of SQuAD; return the file of its scores.

    It is asked once: where the file is there, it is left as it is.
    """
    file = squad_file(study.results, run)
    if file.exists():
        return file
    chosen = json.loads(result_file(study.results, run).read_text())["fine_tuned"][EXTRACTION]["chosen"]
    workdir = study.tuned_with(run, EXTRACTION, chosen["learning_rate"])
    asked: dict[str, Any] = {"task": SQUAD, "path": str(questions.absolute())}
    if study.scale.squad_questions is not None:
        asked["max_questions"] = study.scale.squad_questions
    tasks = {SQUAD: asked}
    found = _measure(study, tasks, workdir, chosen["step"], study.folder(run) / "log.txt")
    # Results are published, and the paragraphs have a licence of their own.
    del found[SQUAD]["examples"]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"run": run._asdict(), **found})
    return file


def _tune(study: Study, run: Run, tuning: str, clock: Clock, log: Path) -> dict[str, Any]:
    """Fine-tune over the grid, choose by validation, and then look at the test."""
    scale, rates = study.scale, fine_tuning.grid_of(study.scale, tuning).learning_rates
    with clock.stage(f"{tuning}_tuning"):
        for rate in rates:
            if not is_trained(study.tuned_with(run, tuning, rate)):
                study.run_verb(_tuning_command(study, run, tuning, rate), log)
    baseline = _commonest_digits(study, VALIDATION) if tuning == PHONEBOOK else {}
    curves = {rate: fine_tuning.learning_curve(study.tuned_with(run, tuning, rate)) for rate in rates}
    chosen = fine_tuning.choose(curves, tuning, baseline)
    workdir = study.tuned_with(run, tuning, chosen.learning_rate)
    with clock.stage("measuring"):
        tasks = fine_tuning.question_tasks(scale, tuning, TEST, study.corpus.extraction(TEST))
        test = _measure(study, tasks, workdir, chosen.step, log)
    curve = curves[chosen.learning_rate]
    milestones = {}
    if tuning == PHONEBOOK:
        for cell, _, _ in fine_tuning.phonebook_cells(scale.phonebook):
            metric = f"{cell}/exact_match"
            milestones[cell] = {
                name: fine_tuning.steps_to(curve, metric, share) for name, share in _MILESTONES.items()
            }
    return {
        "grid": [{"learning_rate": rate, "curve": curve} for rate, curve in curves.items()],
        "commonest_digits": baseline,
        "chosen": chosen._asdict(),
        "steps_to_exact_match": milestones,
        "test": test,
    }


def _tuning_command(study: Study, run: Run, tuning: str, rate: float) -> Command:
    return fine_tuning.fine_tuning_command(
        run,
        tuning,
        rate,
        pretrained=study.pretrained(run),
        learned=study.corpus.extraction("train"),
        validated=study.corpus.extraction(VALIDATION),
        workdir=study.tuned_with(run, tuning, rate),
    )


def _measure(
    study: Study, tasks: Mapping[str, Mapping[str, Any]], workdir: Path, step: int, log: Path
) -> dict[str, Any]:
    """Measure a checkpoint on tasks unless that is done; return what is kept of it."""
    found = measured(workdir, step, list(tasks), measuring.baselines_of_books)
    if found is None:
        study.run_verb(evaluate_command(tasks, workdir, step), log)
        found = measured(workdir, step, list(tasks), measuring.baselines_of_books)
    assert found is not None
    return found


def _commonest_digits(study: Study, split: str) -> dict[str, float]:
    """Return of each cell of phone books what the commonest digits give, computed once for a corpus."""
    file = study.corpus.folder / f"commonest_digits_{split}.json"
    if not file.exists():
        tokenizer = load_tokenizer(study.corpus.prepared)
        cells = fine_tuning.question_tasks(study.scale, PHONEBOOK, split, "")
        found = {}
        for name, settings in cells.items():
            given = {key: value for key, value in settings.items() if key != "task"}
            questions, _ = make_task("phonebook", given, name).questions(tokenizer)
            found[name] = mean_commonest_digits(
                (question.prompt, question.references[0]) for question in questions
            )
        write_json(file, found)
    return json.loads(file.read_text())
