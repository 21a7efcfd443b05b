"""Fine-tuning on phone books in stages that end when learned, several times per checkpoint.

Each stage is a separate run from the last checkpoint of the previous stage, with a new optimizer. A stage
ends at the first measurement with at least the share `BookStage.learned` of its validation questions
answered exactly, or after its maximum number of steps. All stages together have at most
`FineTuningPlan.steps` steps. Training measures only the size of books that decides the stage, which takes
little time.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_collections

from studies.retrieval.fine_tuning import PHONEBOOK, VALIDATION, learning_curve, question_tasks
from studies.retrieval.plans import BookStage, Run
from studies.retrieval.pretraining import CONFIG_FILE
from studies.retrieval.scales import SCALES
from studies.verbs import Command
from studies.workdirs import last_step

EXACT = "exact_match"
# A seed of fine-tuning has separate decimal places for the run's seed, the number and the stage.
_PLACES = 100


class StageRun(NamedTuple):
    """One stage of a run's fine-tuning.

    Attributes:
        run: the run.
        number: the number of the fine-tuning, from 0.
        stage: the number of the stage, from 0.
    """

    run: Run
    number: int
    stage: int

    @property
    def name(self) -> str:
        """The name of the workdir."""
        return f"{PHONEBOOK}_{self.number}_{self.stage}"

    @property
    def plan(self) -> BookStage:
        """The plan of the stage."""
        return SCALES[self.run.scale].phonebook.stages[self.stage]

    @property
    def cell(self) -> str:
        """The task that measures the stage."""
        return f"entries_{self.plan.until}"


def stages_of(run: Run, number: int) -> Iterator[StageRun]:
    """Yield the stages of a run's fine-tuning."""
    for stage in range(len(SCALES[run.scale].phonebook.stages)):
        yield StageRun(run, number, stage)


def choose_stage(config: ml_collections.ConfigDict, run: Run, number: int, stage: int) -> None:
    """Keep only one stage in a fine-tuning's configuration, and end it when it is learned."""
    scale, chosen = SCALES[run.scale], StageRun(run, number, stage)
    plan = scale.phonebook_tuning
    name = sorted(config.finetune.stages)[stage]
    books = scale.phonebook.book_settings(number)
    config.finetune.stages = {name: {**config.finetune.stages[name], **books, **chosen.plan.books}}
    cells = question_tasks(scale, PHONEBOOK, VALIDATION, "", number)
    config.eval.tasks = {chosen.cell: cells[chosen.cell]}
    config.eval.task_rows = scale.phonebook.validation_questions
    config.eval.stop_when = f"{chosen.cell}/{EXACT} >= {chosen.plan.learned:g}"
    config.seed = (run.seed * _PLACES + number) * _PLACES + stage
    config.checkpoint.every_steps = max(plan.measured_every, plan.steps // 8)
    config.checkpoint.keep = 2


def stage_command(one: StageRun, source: Path, steps: int, workdir: Path) -> Command:
    """Return the command of a stage.

    Args:
        one: the stage.
        source: the workdir of the checkpoint to start from.
        steps: the maximum number of train steps.
        workdir: the workdir of the stage.
    """
    run = one.run
    rate = SCALES[run.scale].phonebook_tuning.learning_rates[0]
    variant = ",".join(map(str, (*run, PHONEBOOK, f"{rate:g}", one.number, one.stage)))
    return Command(
        "train",
        (
            f"--config={CONFIG_FILE}:{variant}",
            f"--config.init.from={source}",
            f"--config.train.num_steps={steps}",
            f"--workdir={workdir}",
        ),
    )


def stage_curve(one: StageRun, workdir: Path, before: int) -> list[dict[str, Any]]:
    """Return the learning curve of a finished stage, with steps counted over the whole fine-tuning.

    Args:
        one: the stage.
        workdir: the workdir of the stage.
        before: the total steps of the previous stages.
    """
    measured = [point for point in learning_curve(workdir) if point["step"] <= last_step(workdir)]
    name = f"{one.cell}/{EXACT}"
    return [
        {"step": before + point["step"], "stage": one.stage, name: point[name]}
        for point in measured
        if point["step"] > 0
    ]
