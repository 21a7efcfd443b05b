"""Fine-tuning of a run over the grid of its scale, and the choice by validation questions.

Learning rates are constant and without warm-up, so the checkpoint at step s equals the result of a run of s
steps. The grid of rates and steps costs one run per rate. The choice is the point with the best mean
validation score over the cells: digit accuracy above that of the commonest digits, or F1.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_collections
import numpy as np

from birdie_jax.errors import ConfigError
from studies.retrieval.plans import FineTuningPlan, PhonebookPlan, Run, Scale
from studies.retrieval.pretraining import CONFIG_FILE, pretraining_config
from studies.retrieval.scales import SCALES
from studies.verbs import Command
from studies.workdirs import read_metric_lines

PHONEBOOK, EXTRACTION = "phonebook", "extraction"
TUNINGS = (PHONEBOOK, EXTRACTION)
VALIDATION, TEST = "validation", "test"
# Test and validation questions always differ, for every seed of the run.
_QUESTION_SEEDS = {VALIDATION: 1001, TEST: 3003}
_EXTRACTION_METRICS = ("f1", "exact_match", "contains")


def grid_of(scale: Scale, tuning: str) -> FineTuningPlan:
    """Return the grid of the fine-tuning "phonebook" or "extraction".

    Raises:
        ConfigError: the fine-tuning is unknown.
    """
    if tuning not in TUNINGS:
        raise ConfigError(f"fine-tuning {tuning!r} is unknown; allowed: {', '.join(TUNINGS)}")
    return scale.phonebook_tuning if tuning == PHONEBOOK else scale.extraction_tuning


def tunings_on_grids(scale: Scale) -> tuple[str, ...]:
    """Return what the models of a scale are fine-tuned on over a grid of rates and steps."""
    tunings = (EXTRACTION,) if scale.has_curriculum else TUNINGS
    return tuple(tuning for tuning in tunings if grid_of(scale, tuning).steps)


def phonebook_cells(plan: PhonebookPlan) -> list[tuple[str, int, int]]:
    """Return (name, entries, queried numbers) of each cell: first by entries, then by queried numbers."""
    cells = [(f"entries_{entries}", entries, 1) for entries in plan.entries]
    return cells + [(f"numbers_{numbers}", plan.entries_of_numbers, numbers) for numbers in plan.numbers]


def question_tasks(
    scale: Scale, tuning: str, split: str, questions: Path | str, number: int = 0
) -> dict[str, dict]:
    """Return the tasks that measure a fine-tuned model, by name.

    Args:
        scale: the scale.
        tuning: "phonebook" or "extraction".
        split: "validation" or "test".
        questions: the file of the split's questions on passages.
        number: the number of the fine-tuning of a checkpoint, which may set the place of the question.
    """
    if tuning == EXTRACTION:
        task = {
            "task": "jsonl",
            "path": str(questions),
            "metrics": _EXTRACTION_METRICS,
            "max_tokens": scale.extraction.max_tokens,
            "group_fields": ("passage_tokens",),
        }
        return {EXTRACTION: task}
    plan = scale.phonebook
    count = plan.validation_questions if split == VALIDATION else plan.test_questions
    books = plan.book_settings(number)
    form = {
        key: books[key]
        for key in ("number_format", "name_words", "question", "question_form")
        if key in books
    }
    return {
        name: {
            "task": "phonebook",
            **form,
            "min_entries": entries,
            "max_entries": entries,
            "min_numbers": numbers,
            "max_numbers": numbers,
            "max_positions": scale.phonebook_tuning.length,
            "num_questions": count,
            "seed": _QUESTION_SEEDS[split],
        }
        for name, entries, numbers in phonebook_cells(plan)
    }


def fine_tuning_config(run: Run, tuning: str, learning_rate: float) -> ml_collections.ConfigDict:
    """Return the configuration of a run's fine-tuning. Flags set the files of questions.

    Raises:
        ConfigError: the run or the fine-tuning is unknown.
    """
    scale = SCALES[run.scale]
    plan = grid_of(scale, tuning)
    config = pretraining_config(run)
    batch = {"length": plan.length, "rows": plan.rows}
    if tuning == PHONEBOOK:
        config.finetune.stages = _phonebook_stages(scale.phonebook, plan, batch)
    else:
        questions = {"task": "jsonl", "path": "questions.jsonl", "metrics": _EXTRACTION_METRICS}
        config.finetune.stages = {tuning: {**questions, **batch, "steps": plan.steps, "skip_long": True}}
    config.batching.update({"rows": plan.rows, "length": plan.length})
    config.data.record_tokens = max(config.data.record_tokens, plan.length)
    config.train.num_steps = 0
    config.train.accumulation_steps = 0 if scale.pretraining_tokens == 0 else 1
    config.train.loss_chunk = math.gcd(config.train.loss_chunk, plan.length)
    config.train.log_every_steps = min(config.train.log_every_steps, plan.measured_every)
    config.eval.tasks = question_tasks(scale, tuning, VALIDATION, "questions.jsonl")
    config.eval.tasks_every_steps = plan.measured_every
    config.optimizer.learning_rate = learning_rate
    config.optimizer.final_learning_rate = learning_rate
    config.optimizer.warmup_steps = 0
    config.optimizer.weight_decay = 0.0
    config.checkpoint.every_steps = plan.measured_every
    # Keep all measured checkpoints: the choice may be any of them.
    config.checkpoint.keep = max(2, len(plan.measured_steps) + 1)
    return config


def _phonebook_stages(
    plan: PhonebookPlan, grid: FineTuningPlan, batch: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """Return the stages of fine-tuning on phone books. Their names sort in order."""
    books = {"task": "phonebook", **plan.books, **batch, "max_positions": grid.length}
    if not plan.stages:
        return {PHONEBOOK: {**books, "steps": grid.steps}}
    if any(stage.until for stage in plan.stages):
        return {
            f"{PHONEBOOK}_{number}": {**books, **stage.books, "steps": grid.steps}
            for number, stage in enumerate(plan.stages, 1)
        }
    shares = np.cumsum([stage.share for stage in plan.stages])
    ends = np.rint(grid.steps * shares / shares[-1]).astype(int)
    steps = np.diff(ends, prepend=0)
    return {
        f"{PHONEBOOK}_{number}": {**books, **stage.books, "steps": int(count)}
        for number, (stage, count) in enumerate(zip(plan.stages, steps, strict=True), 1)
        if count
    }


def fine_tuning_command(
    run: Run,
    tuning: str,
    learning_rate: float,
    *,
    pretrained: Path | str,
    learned: Path | str,
    validated: Path | str,
    workdir: Path | str,
) -> Command:
    """Return the command that fine-tunes a pre-trained run with one rate of the grid.

    Args:
        run: the run.
        tuning: "phonebook" or "extraction".
        learning_rate: the learning rate.
        pretrained: the workdir of the pre-training.
        learned: the file of training questions on passages.
        validated: the file of validation questions on passages.
        workdir: the workdir of the fine-tuning.
    """
    variant = f"{run.scale},{run.model},{run.procedure},{run.seed},{tuning},{learning_rate:g}"
    files = ()
    if tuning == EXTRACTION:
        files = (
            f"--config.finetune.stages.{EXTRACTION}.path={learned}",
            f"--config.eval.tasks.{EXTRACTION}.path={validated}",
        )
    return Command(
        "train",
        (
            f"--config={CONFIG_FILE}:{variant}",
            f"--config.init.from={pretrained}",
            *files,
            f"--workdir={workdir}",
        ),
    )


class Chosen(NamedTuple):
    """The point of the grid that the validation questions choose.

    Attributes:
        learning_rate: the learning rate.
        step: the number of train steps.
        score: the mean validation score over the cells.
    """

    learning_rate: float
    step: int
    score: float


def learning_curve(workdir: Path) -> list[dict[str, Any]]:
    """Return {"step", "<task>/<metric>" of every task} for each measured step."""
    curve = []
    for line in read_metric_lines(workdir):
        found = {
            name.removeprefix("task/"): value for name, value in line.items() if name.startswith("task/")
        }
        if found:
            curve.append({"step": line["step"], **found})
    return curve


def score_of(measured: Mapping[str, Any], tuning: str, baseline: Mapping[str, float]) -> float:
    """Return the mean score over the cells of a measured step.

    Args:
        measured: a point of `learning_curve`.
        tuning: "phonebook" or "extraction".
        baseline: the digit accuracy of giving the commonest digits, by cell of phone books.
    """
    if tuning == EXTRACTION:
        return measured[f"{EXTRACTION}/f1"]
    return sum(measured[f"{cell}/digit_accuracy"] - base for cell, base in baseline.items()) / len(baseline)


def choose(
    curves: Mapping[float, Sequence[Mapping[str, Any]]], tuning: str, baseline: Mapping[str, float]
) -> Chosen:
    """Return the point of the grid with the best validation score; ties go to the fewest steps.

    Args:
        curves: the learning curve of each learning rate.
        tuning: "phonebook" or "extraction".
        baseline: see `score_of`.
    """
    points = [
        Chosen(rate, measured["step"], score_of(measured, tuning, baseline))
        for rate, curve in curves.items()
        for measured in curve
    ]
    return min(points, key=lambda point: (-point.score, point.step, point.learning_rate))


def steps_to(curve: Sequence[Mapping[str, Any]], metric: str, share: float) -> int | None:
    """Return the first measured step with a metric of at least `share`; None if there is none."""
    return next((measured["step"] for measured in curve if measured[metric] >= share), None)
