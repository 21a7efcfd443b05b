"""The encoder study: its runs, from text to result, and its page."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from studies.encoders.config import CONFIG_FILE, task_settings
from studies.encoders.kernels import PRETRAINED, kernels_record
from studies.encoders.pilot import Settings, is_pilot_done, pilot_commands_left, read_pilot, settings_of
from studies.encoders.plans import AGREEMENT, SCALES, TITLES, Run, Scale, runs_of
from studies.encoders.tables import all_tables, figures_of
from studies.encoders.text import TEST, TRAIN, VALIDATION, Corpus, corpus_of, prepare_corpus
from studies.results import read_result
from studies.runner import Outcome, Study
from studies.verbs import Clock, Command, StudyError
from studies.workdirs import is_trained, last_step, measure, read_metric_lines, training_record


@dataclass(frozen=True)
class Encoders(Study[Scale, Run]):
    """Compares gates and state-space layers in encoders. The text has the fields `text` and `source`."""

    name = "encoders"
    page = "encoders.md"
    scales = SCALES
    make_run = Run

    def runs(self) -> Iterator[Run]:
        """Yield the runs of the scale."""
        return runs_of(self.scale)

    def title(self, run: Run) -> str:
        """Return the name of a run's cell."""
        return TITLES[run.model]

    @property
    def corpus(self) -> Corpus:
        """The files of the corpus."""
        return corpus_of(self.workdirs, self.scale)

    def tuned_with(self, run: Run, task: str, learning_rate: float) -> Path:
        """Return the workdir of a run's fine-tuning on a task with a learning rate."""
        return self.tuned(run, f"{task}_{learning_rate:g}")

    def rates_of(self, run: Run, task: str) -> tuple[float, ...]:
        """Return the learning rates to fine-tune a run with on a task.

        The first seed of a cell tries the whole grid. The other seeds use the rate that it chooses.

        Raises:
            StudyError: the run with the first seed has no result yet.
        """
        first = run.first_of_its_cell
        if run == first:
            return self.scale.tuning_rates
        file = self.result_file(first)
        if not file.exists():
            raise StudyError(
                f"{run.name}: needs the learning rates that {first.name} chooses, but it has no result: "
                f"{file}"
            )
        return (read_result(file)["fine_tuned"][task]["learning_rate"],)

    def commands_left(self, run: Run) -> Iterator[Command]:
        """Yield the training commands that a run still needs.

        If the pilot of its cell is not done, these are only the pilot's commands, because the pilot decides
        the others. Fine-tuning requires the result of the cell's run with the first seed.
        """
        if self.result_file(run).exists():
            return
        if not is_pilot_done(self, run.model):
            yield from pilot_commands_left(self, run.model)
            return
        settings = settings_of(self, run.model, self.log(run))
        if not is_trained(self.pretrained(run)):
            yield self._pretraining_command(run, settings)
        first = run.first_of_its_cell
        if run != first and not self.result_file(first).exists():
            return
        for task in self.scale.tasks:
            for rate in self.rates_of(run, task):
                if not is_trained(self.tuned_with(run, task, rate)):
                    yield self._tuning_command(run, settings, task, rate)

    def _pretraining_command(self, run: Run, settings: Settings) -> Command:
        return Command(
            "train",
            (
                f"--config={CONFIG_FILE}:{run.scale},{run.model},{run.seed}",
                f"--config.data.prepared={self.corpus.prepared}",
                *settings.flags(),
                f"--workdir={self.pretrained(run)}",
            ),
        )

    def _tuning_command(self, run: Run, settings: Settings, task: str, rate: float) -> Command:
        return Command(
            "train",
            (
                f"--config={CONFIG_FILE}:{run.scale},{run.model},{run.seed},{task},{rate:g}",
                f"--config.init.from={self.pretrained(run)}",
                f"--config.finetune.stages.{task}.path={self.corpus.samples(task, TRAIN)}",
                f"--config.eval.tasks.{task}.path={self.corpus.samples(task, VALIDATION)}",
                *settings.flags_of_model(),
                f"--workdir={self.tuned_with(run, task, rate)}",
            ),
        )

    def measure(self, run: Run, clock: Clock, log: Path) -> Outcome:
        """Pre-train a run with its pilot's settings, measure it, and fine-tune it on every task.

        Raises:
            StudyError: a command failed, the text cannot be used, or the cell's run with the first seed
                has no result.
        """
        text = prepare_corpus(self.scale, self.text, self.corpus, self.run_verb)
        pretrained = self.pretrained(run)
        with clock.stage("pilot"):
            settings = settings_of(self, run.model, log)
        with clock.stage("pretraining"):
            if not is_trained(pretrained):
                self.run_verb(self._pretraining_command(run, settings), log)
        with clock.stage("measuring"):
            agreement = {AGREEMENT: {"task": AGREEMENT, "path": str(self.corpus.agreement)}}
            as_it_is = measure(self.run_verb, agreement, pretrained, last_step(pretrained), log)
        tuned = {task: self._tune(run, settings, task, clock, log) for task in self.scale.tasks}
        task = self.scale.kernels_after
        compared = {
            PRETRAINED: pretrained,
            task: self.tuned_with(run, task, tuned[task]["learning_rate"]),
        }
        found = {
            "text": text,
            "pretraining": training_record(pretrained, lambda name: name.endswith("validation_loss")),
            "pretrained": as_it_is,
            "fine_tuned": tuned,
            "kernels": kernels_record(run, compared),
        }
        # Only the pre-trained checkpoint is reused.
        workdirs = [self.tuned_with(run, task, rate) for task in tuned for rate in self.rates_of(run, task)]
        return Outcome(found, [workdir / "checkpoints" for workdir in workdirs])

    def _tune(self, run: Run, settings: Settings, task: str, clock: Clock, log: Path) -> dict[str, Any]:
        """Fine-tune on a task with each rate, choose a rate by validation, and measure it on the test."""
        workdirs = {rate: self.tuned_with(run, task, rate) for rate in self.rates_of(run, task)}
        with clock.stage(f"{task}_tuning"):
            for rate, workdir in workdirs.items():
                if not is_trained(workdir):
                    self.run_verb(self._tuning_command(run, settings, task, rate), log)
        metric = f"task/{task}/accuracy"
        validated = {
            rate: [line[metric] for line in read_metric_lines(workdir) if metric in line][-1]
            for rate, workdir in workdirs.items()
        }
        # The smaller rate wins a tie.
        chosen = min(validated, key=lambda rate: (-validated[rate], rate))
        steps = last_step(workdirs[chosen])
        with clock.stage("measuring"):
            questions = {task: {**task_settings(task), "path": str(self.corpus.samples(task, TEST))}}
            test = measure(self.run_verb, questions, workdirs[chosen], steps, log)
        return {
            "validation": {f"{rate:g}": score for rate, score in validated.items()},
            "learning_rate": chosen,
            "steps": steps,
            "test": test[task],
        }

    def tables(self, results: Mapping[Run, Mapping[str, Any]]) -> list[str]:
        """Return the sections of the page."""
        pilots = {model: read_pilot(self, model) for model in TITLES}
        return all_tables(results, {model: tried for model, tried in pilots.items() if tried})

    def figures(self, results: Mapping[Run, Mapping[str, Any]]) -> Iterator[tuple[str, Figure]]:
        """Yield the figures of the page."""
        return figures_of(results)
