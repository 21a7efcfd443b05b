"""The retrieval study: its runs, from text to result, and its page."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from birdie_jax.storage import write_json
from birdie_jax.tasks import make_task
from birdie_jax.text import load_tokenizer
from studies.results import read_result, read_results, write_result
from studies.retrieval import fine_tuning
from studies.retrieval.curriculum import StageRun, stage_command, stage_curve, stages_of
from studies.retrieval.direction import direction_figures, direction_tables
from studies.retrieval.figures import figures_of
from studies.retrieval.fine_tuning import EXTRACTION, PHONEBOOK, TEST, VALIDATION
from studies.retrieval.measuring import SQUAD, above_baseline, mean_commonest_digits, pretrained_tasks
from studies.retrieval.plans import PROCEDURES, Run, Scale, runs_of
from studies.retrieval.pretraining import pretraining_command, pretraining_record
from studies.retrieval.scales import SCALES
from studies.retrieval.tables import all_tables
from studies.retrieval.text import Corpus, corpus_command, prepare_corpus
from studies.retrieval.worth import worth_tables
from studies.retrieval.worth_figures import worth_figures
from studies.runner import Outcome, Study
from studies.verbs import Clock, Command, StudyError
from studies.workdirs import evaluate_command, is_trained, last_step, measure, measured

# Shares of exact answers.
_MILESTONES = {"half": 0.5, "nine_tenths": 0.9}
_GRIDS_PAGE = "retrieval_procedures.md"


@dataclass(frozen=True)
class Retrieval(Study[Scale, Run]):
    """Measures retrieval after Birdie's pre-training. The text is documents, as prepare_data's input."""

    name = "retrieval"
    page = "retrieval.md"
    scales = SCALES
    make_run = Run

    def runs(self) -> Iterator[Run]:
        """Yield the runs of the scale."""
        return runs_of(self.scale)

    def title(self, run: Run) -> str:
        """Return the title of a run's procedure."""
        return PROCEDURES[run.procedure].title

    @classmethod
    def page_of(cls, scale: Scale) -> str:
        """Return the page; scales with grids of fine-tuning have their own."""
        return cls.page if scale.has_curriculum else _GRIDS_PAGE

    @classmethod
    def default_text(cls, scale: Scale) -> str:
        """Return the corpus of a scale."""
        return scale.text

    def read_results(self) -> dict[Run, dict[str, Any]]:
        """Return the available results of the scale, and those of the scale in `Scale.beside`."""
        found, scale = super().read_results(), self.scale
        if scale.beside:
            shown = {(name, seed) for names, seeds in scale.order for name in names for seed in seeds}
            for run, result in read_results(self.results, scale.beside, Run).items():
                if (run.procedure, run.seed) in shown:
                    found[run] = result
        return found

    @property
    def corpus(self) -> Corpus:
        """The files of the corpus."""
        return Corpus(
            self.workdirs / f"text_{self.scale.pieces}",
            self.workdirs / self.scale.name / "questions",
        )

    def pretrained(self, run: Run) -> Path:
        """Return the workdir of a run's pre-training."""
        return self.workdirs / self.scale.name / run.name / "pretraining"

    def tuned_with(self, run: Run, tuning: str, learning_rate: float) -> Path:
        """Return the workdir of a run's fine-tuning with a learning rate."""
        return self.tuned(run, f"{tuning}_{learning_rate:g}")

    def commands_left(self, run: Run) -> list[Command]:
        """Return the commands that a run still needs, as far as they are known.

        The command of the test is not among them: its rate and step depend on the validation.
        """
        if self.result_file(run).exists():
            return []
        corpus, left = self.corpus, []
        if not corpus.record.exists():
            left.append(corpus_command(self.scale, self.text, corpus))
        pretrained = self.pretrained(run)
        if not is_trained(pretrained):
            left.append(pretraining_command(run, corpus.prepared, pretrained))
        tasks = pretrained_tasks(self.scale, corpus)
        if not is_trained(pretrained) or measured(pretrained, last_step(pretrained), list(tasks)) is None:
            left.append(evaluate_command(tasks, pretrained))
        if self.scale.has_curriculum:
            # A later stage depends on the end of the stage before it.
            for number in range(self.scale.phonebook_tuning.seeds):
                first = StageRun(run, number, 0)
                if not is_trained(self.tuned(run, first.name)):
                    left.append(self._stage_command(first, pretrained, 0))
        for tuning in fine_tuning.tunings_on_grids(self.scale):
            for rate in fine_tuning.grid_of(self.scale, tuning).learning_rates:
                if not is_trained(self.tuned_with(run, tuning, rate)):
                    left.append(self._tuning_command(run, tuning, rate))
        return left

    def _stage_command(self, one: StageRun, source: Path, before: int) -> Command:
        left = self.scale.phonebook_tuning.steps - before
        left = min(left, one.plan.steps or left)
        return stage_command(one, source, left, self.tuned(one.run, one.name))

    def _tuning_command(self, run: Run, tuning: str, rate: float) -> Command:
        return fine_tuning.fine_tuning_command(
            run,
            tuning,
            rate,
            pretrained=self.pretrained(run),
            learned=self.corpus.extraction("train"),
            validated=self.corpus.extraction(VALIDATION),
            workdir=self.tuned_with(run, tuning, rate),
        )

    def measure(self, run: Run, clock: Clock, log: Path) -> Outcome:
        """Pre-train a run, measure it, fine-tune it over the grids, and measure the chosen points."""
        corpus = self.corpus
        text = prepare_corpus(self.scale, self.text, corpus, self.run_verb)
        pretrained = self.pretrained(run)
        if not is_trained(pretrained):
            with clock.stage("pretraining"):
                self.run_verb(pretraining_command(run, corpus.prepared, pretrained), log)
        with clock.stage("measuring"):
            as_it_is = self._measure(
                pretrained_tasks(self.scale, corpus), pretrained, last_step(pretrained), log
            )
        grids = fine_tuning.tunings_on_grids(self.scale)
        tuned = {tuning: self._tune(run, tuning, clock, log) for tuning in grids}
        # Only the chosen run of a grid is measured again.
        rates = {tuning: found["chosen"]["learning_rate"] for tuning, found in tuned.items()}
        others = [
            self.tuned_with(run, tuning, rate) / "checkpoints"
            for tuning in grids
            for rate in fine_tuning.grid_of(self.scale, tuning).learning_rates
            if rate != rates[tuning]
        ]
        if self.scale.has_curriculum:
            numbers = range(self.scale.phonebook_tuning.seeds)
            tuned[PHONEBOOK] = {
                "repeats": [self._learn_stages(run, number, clock, log) for number in numbers]
            }
            others += [
                self.tuned(run, one.name) / "checkpoints"
                for number in numbers
                for one in stages_of(run, number)
            ]
        found = {
            "text": text,
            "pretraining": pretraining_record(pretrained),
            "pretrained": as_it_is,
            "fine_tuned": tuned,
        }
        return Outcome(found, others)

    def _tune(self, run: Run, tuning: str, clock: Clock, log: Path) -> dict[str, Any]:
        """Fine-tune over the grid, choose a point by validation, and measure it on the test."""
        rates = fine_tuning.grid_of(self.scale, tuning).learning_rates
        with clock.stage(f"{tuning}_tuning"):
            for rate in rates:
                if not is_trained(self.tuned_with(run, tuning, rate)):
                    self.run_verb(self._tuning_command(run, tuning, rate), log)
        baseline = self._commonest_digits(VALIDATION) if tuning == PHONEBOOK else {}
        curves = {rate: fine_tuning.learning_curve(self.tuned_with(run, tuning, rate)) for rate in rates}
        chosen = fine_tuning.choose(curves, tuning, baseline)
        with clock.stage("measuring"):
            tasks = fine_tuning.question_tasks(self.scale, tuning, TEST, self.corpus.extraction(TEST))
            test = self._measure(
                tasks, self.tuned_with(run, tuning, chosen.learning_rate), chosen.step, log
            )
        curve = curves[chosen.learning_rate]
        milestones = {}
        if tuning == PHONEBOOK:
            for cell, _, _ in fine_tuning.phonebook_cells(self.scale.phonebook):
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

    def _learn_stages(self, run: Run, number: int, clock: Clock, log: Path) -> dict[str, Any]:
        """Fine-tune on phone books stage by stage, and measure the last stage on the test."""
        scale, workdir, before, curve = self.scale, self.pretrained(run), 0, []
        with clock.stage(f"{PHONEBOOK}_tuning"):
            for one in stages_of(run, number):
                source, workdir = workdir, self.tuned(run, one.name)
                if not is_trained(workdir):
                    self.run_verb(self._stage_command(one, source, before), log)
                curve += stage_curve(one, workdir, before)
                before += last_step(workdir)
                if before >= scale.phonebook_tuning.steps:
                    break
        with clock.stage("measuring"):
            tasks = fine_tuning.question_tasks(scale, PHONEBOOK, TEST, "", number)
            test = self._measure(tasks, workdir, last_step(workdir), log)
        found = {"number": number, "steps": before, "curve": curve, "test": test}
        places = scale.phonebook.question_places
        return {**found, "question": places[number]} if places else found

    def _measure(
        self, tasks: Mapping[str, Mapping[str, Any]], workdir: Path, step: int, log: Path
    ) -> dict[str, Any]:
        return measure(self.run_verb, tasks, workdir, step, log, above_baseline)

    def _commonest_digits(self, split: str) -> dict[str, float]:
        """Return the digit accuracy of the commonest digits in each cell of phone books, computed once."""
        file = self.corpus.folder / f"commonest_digits_{split}.json"
        if not file.exists():
            tokenizer = load_tokenizer(self.corpus.prepared)
            cells = fine_tuning.question_tasks(self.scale, PHONEBOOK, split, "")
            found = {}
            for name, settings in cells.items():
                given = {key: value for key, value in settings.items() if key != "task"}
                questions, _ = make_task("phonebook", given, name).questions(tokenizer)
                found[name] = mean_commonest_digits(
                    (question.prompt, question.references[0]) for question in questions
                )
            write_json(file, found)
        return json.loads(file.read_text())

    def ask_squad(self, run: Run, questions: Path) -> Path:
        """Measure a finished run, fine-tuned on passages, on SQuAD; return its result file.

        This is done once: a result with scores on SQuAD is not changed.

        Raises:
            StudyError: the run was not fine-tuned on passages.
        """
        file = self.result_file(run)
        result = read_result(file)
        if SQUAD in result:
            return file
        if EXTRACTION not in result["fine_tuned"]:
            raise StudyError(
                f"--final: {run.name} of the scale {self.scale.name} was fine-tuned on "
                f"{', '.join(result['fine_tuned'])}; allowed: a scale that fine-tunes on {EXTRACTION}"
            )
        chosen = result["fine_tuned"][EXTRACTION]["chosen"]
        workdir = self.tuned_with(run, EXTRACTION, chosen["learning_rate"])
        task: dict[str, Any] = {"task": SQUAD, "path": str(questions.absolute())}
        if self.scale.squad_questions is not None:
            task["max_questions"] = self.scale.squad_questions
        found = self._measure({SQUAD: task}, workdir, chosen["step"], self.log(run))
        description = {name: result.pop(name) for name in ("study", "run", "circumstances")}
        write_result(file, description, result | found)
        return file

    def tables(self, results: Mapping[Run, Mapping[str, Any]]) -> list[str]:
        """Return the sections of the page."""
        if self.scale.phonebook.question_places:
            return direction_tables(results)
        return worth_tables(self.scale, results) if self.scale.has_curriculum else all_tables(results)

    def figures(self, results: Mapping[Run, Mapping[str, Any]]) -> Iterator[tuple[str, Figure]]:
        """Yield the figures of the page."""
        if self.scale.phonebook.question_places:
            return direction_figures(results)
        return worth_figures(self.scale, results) if self.scale.has_curriculum else figures_of(results)
