"""Named tasks, their evaluation on a model, and the files of the results."""

import json
import math
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints

from birdie_jax.config import Config
from birdie_jax.errors import ConfigError, PromptError, ScoreError, shown
from birdie_jax.evaluation_record import EvaluatedModel, EvaluationRecord, parse_evaluation
from birdie_jax.generation import choose_arm
from birdie_jax.models.registry import architecture_of
from birdie_jax.models.task_head import Head
from birdie_jax.objectives import Arm, make_objective
from birdie_jax.objectives.masked_lm import MaskedLM
from birdie_jax.resolve import trained_arms
from birdie_jax.storage import exists, is_remote, make_path, read_bytes, write_whole
from birdie_jax.storage.outputs import Input
from birdie_jax.storage.workdir import Workdir
from birdie_jax.tasks.head_task import trained_head
from birdie_jax.tasks.question import ScoredAnswer, TaskResult
from birdie_jax.tasks.records import READ
from birdie_jax.tasks.registry import TASKS, task_of_flag, task_of_section
from birdie_jax.tasks.summary import summarise
from birdie_jax.tasks.task import Task
from birdie_jax.tasks.task_model import Progress, TaskModel, no_progress
from birdie_jax.tasks.training_examples import PROMPT_OBJECTIVE

# Names of files and metrics contain the name of an evaluation.
_NAME = re.compile(r"[A-Za-z0-9_]{1,100}")
_NAME_RULE = "letters, digits, underscores, at most 100"
_NAMED_FLAG = re.compile(r"(?P<name>[A-Za-z0-9_]*)=(?P<task>[A-Za-z0-9_]+(?::.*)?)", re.DOTALL)


class NamedTask(NamedTuple):
    """A task and the name of its evaluation.

    Attributes:
        name: the name of the evaluation: letters, digits and underscores.
        task: the task.
    """

    name: str
    task: Task


class AskedArms(NamedTuple):
    """The arms whose formats an evaluation uses.

    Attributes:
        prompts: the arm that formats prompts; the arm `in_place` if no task has prompts.
        in_place: the arm that hides tokens; None if no task hides tokens or the training arms are unknown.
    """

    prompts: Arm
    in_place: Arm | None

    def of(self, task: Task) -> Arm:
        """Return the arm whose format a task uses."""
        return self.in_place if task.in_place and self.in_place else self.prompts


class Evaluation(NamedTuple):
    """The results of an evaluation.

    Attributes:
        record: the scores.
        result: the answers.
    """

    record: EvaluationRecord
    result: TaskResult


def tasks_of_flags(values: Sequence[str], flag: str = "--task") -> list[NamedTask]:
    """Return the tasks of flags: `TASK`, `TASK:setting=value,...`, or `NAME=TASK:...`.

    Raises:
        ConfigError: a task or a setting is invalid, or two evaluations have the same name.
    """
    named = []
    for value in values:
        match = _NAMED_FLAG.fullmatch(value)
        if match and not _NAME.fullmatch(match["name"]):
            raise ConfigError(f"{flag}: found the name {shown(match['name'], 80)}; allowed: {_NAME_RULE}")
        task = task_of_flag(match["task"] if match else value, flag)
        named.append(NamedTask(match["name"] if match else task.name, task))
    names = [one.name for one in named]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"{flag}: found {names.count(name)} evaluations with the name {name}; allowed: a name for "
                f"each, as in {flag}=NAME={name}:setting=value"
            )
    return named


def files_of_tasks(tasks: Iterable[NamedTask]) -> list[Input]:
    """Return the files and folders that tasks read, from the settings whose types `records.READ` marks."""
    return [
        Input(f"{setting} of --task {name}", getattr(task, setting), all_files=True)
        for name, task in tasks
        for setting, hint in get_type_hints(type(task), include_extras=True).items()
        if READ in getattr(hint, "__metadata__", ()) and getattr(task, setting)
    ]


def tasks_of_config(sections: Mapping[str, Any], where: str) -> list[NamedTask]:
    """Return the tasks of a config section `name -> {task, **settings}`, sorted by name.

    Args:
        sections: the section.
        where: the path of the section for error messages, such as `config.eval.tasks`.

    Raises:
        ConfigError: a name, a task or a setting is invalid.
    """
    for name in sections:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{where}: found the name {shown(name)}; allowed: {_NAME_RULE}")
    return [
        NamedTask(name, task_of_section(sections[name], f"{where}.{name}")) for name in sorted(sections)
    ]


def taught_arms(config: Config) -> tuple[Arm, ...]:
    """Return the arms whose formats a run teaches.

    Fine-tuning teaches only one format: masked LM for a head, else the format of prompts.

    Args:
        config: the configuration of the run.

    Raises:
        ConfigError: the mixture of the configuration is invalid.
    """
    if config.finetune.stages:
        name = MaskedLM.name if config.model.head else PROMPT_OBJECTIVE
        return (Arm(name, make_objective(name), group=name),)
    return trained_arms(config)


def arms_of_tasks(arms: Sequence[Arm], name: str | None, tasks: Sequence[NamedTask]) -> AskedArms:
    """Return the arms whose formats tasks use.

    Args:
        arms: the arms that the model was trained on; empty = unknown.
        name: the name of an arm or an objective: for prompts if a task has prompts, else for hidden tokens.
            None = the default of `choose_arm` for prompts, and the first arm that hides tokens.
        tasks: the tasks.

    Raises:
        ConfigError: a task hides tokens, and the model was not trained to predict hidden tokens.
        PromptError: a task has prompts, and `choose_arm` refuses the arms; or no task has prompts, and
            `name` is not the name of an arm that hides tokens.
    """
    hides = [named.task.name for named in tasks if named.task.in_place]
    if not hides or not arms:
        return AskedArms(choose_arm(arms, name), None)
    in_place = [arm for arm in arms if arm.objective.in_place]
    if not in_place:
        raise ConfigError(
            f"task {hides[0]}: found a model trained on "
            f"{', '.join(dict.fromkeys(arm.objective.name for arm in arms))}; allowed: a model trained on "
            "masked_lm"
        )
    if len(hides) < len(tasks):
        return AskedArms(choose_arm(arms, name), in_place[0])
    arm = in_place[0] if name is None else _arm_in_place(in_place, name)
    return AskedArms(arm, arm)


def _arm_in_place(arms: Sequence[Arm], name: str) -> Arm:
    """Return the arm with this name, or the first arm whose objective has it."""
    found = [arm for arm in arms if arm.name == name] or [arm for arm in arms if arm.objective.name == name]
    if not found or len({arm.objective.marker for arm in found}) > 1:
        why = "its arms have different markers" if found else "tasks in place cannot take its form"
        raise PromptError(
            f"objective {shown(name)}: {why}; allowed: the name of an arm that hides tokens: "
            f"{', '.join(arm.name for arm in arms)}"
        )
    return found[0]


def check_tasks(
    tasks: Sequence[NamedTask], arms: AskedArms, config: Config, max_length: int | None
) -> None:
    """Check that a model can do tasks, before the tasks read data or a program is compiled.

    Args:
        tasks: the tasks.
        arms: the arms whose formats the tasks use.
        config: the configuration of the run that trained the model.
        max_length: the longest rows in tokens that the model was trained on; None = no limit.

    Raises:
        ConfigError: a task requires an encoder to generate text, a head that the model does not have, other
            classes, or longer rows.
    """
    model = config.model
    for name, task in tasks:
        if task.head is not None:
            _check_head(name, task.head, trained_head(config))
        if architecture_of(model).encoder and not task.in_place:
            # Leave out the tasks that need a trained head.
            allowed = ", ".join(
                known for known, kind in TASKS.items() if kind.in_place and kind.head is Task.head
            )
            raise ConfigError(
                f"task {name}: found {task.name}, which asks a model to continue a text, and "
                f"config.model.name = {model.name!r}, a bidirectional encoder, which cannot; allowed for "
                f"an encoder: {allowed}"
            )
        task.check_length(arms.in_place, max_length)


def _check_head(name: str, needed: Head, found: Head | None) -> None:
    if found is None or found.form != needed.form:
        has = f"the head {found.name}, {found.kind}" if found is not None else "no head"
        raise ConfigError(
            f"task {name}: found a model that has {has}; allowed: a model fine-tuned on "
            f"{needed.name}, {needed.kind} with {needed.outputs} outputs"
        )
    if needed.has_other_classes(found):
        raise ConfigError(
            f"task {name}: found the classes {', '.join(needed.classes)}; allowed: "
            f"{', '.join(found.classes)}, in this order, the order of the scores of the model's head "
            f"{found.name}"
        )


def evaluate(
    named: NamedTask,
    model: TaskModel,
    identity: EvaluatedModel,
    progress: Progress = no_progress,
    seed: int = 0,
) -> Evaluation:
    """Measure a model on a task.

    Args:
        named: the task.
        model: the model.
        identity: the identity of the model, for the record.
        progress: called with the number of finished questions and the total.
        seed: the seed of the bootstrap's resamples.

    Raises:
        DataError: the task's data cannot be read. The message names file and record.
        ScoreError: a metric is NaN. JSON has no NaN, and a comparison with NaN is meaningless.
    """
    begin = time.monotonic()
    result = named.task.measure(model, progress)
    seconds = time.monotonic() - begin
    record = summarise(named.name, named.task, identity, result, seconds=seconds, seed=seed)
    if bad := [metric for metric, interval in record.metrics.items() if math.isnan(interval.mean)]:
        raise ScoreError(
            f"{identity.origin} step {identity.step}: task {named.name}: found NaN as {', '.join(bad)}; "
            "allowed: numbers; a model that has diverged gives NaN"
        )
    return Evaluation(record, result)


def answers_to_jsonl(answers: Iterable[ScoredAnswer]) -> bytes:
    """Return questions, answers and scores as JSON, one object a line."""
    lines = []
    for answer in answers:
        question = answer.question
        line = {
            "name": question.name,
            "prompt": question.prompt,
            "answer": answer.answer,
            "references": list(question.references),
            **({"choices": list(question.choices)} if question.choices else {}),
            "metrics": dict(answer.metrics),
            "weight": answer.weight,
            "groups": dict(question.groups),
            **({"categories": dict(question.categories)} if question.categories else {}),
            **({"details": dict(answer.details)} if answer.details else {}),
        }
        text = json.dumps(line, ensure_ascii=False)
        try:
            lines.append(text.encode())
        except UnicodeEncodeError:
            # JSON can escape a lone surrogate, but UTF-8 cannot encode one.
            lines.append(json.dumps(line).encode())
    return b"".join(line + b"\n" for line in lines)


def check_predictions(tasks: Sequence[NamedTask], folder: str | None, others: Sequence[str]) -> None:
    """Check the output files of predictions, before a model is loaded.

    Args:
        tasks: the tasks to evaluate.
        folder: the folder for predictions, `--predictions`; None = the flag is not given.
        others: the models to compare with, `--compare`.

    Raises:
        ConfigError: a task writes predictions and `folder` is missing, or the reverse; two tasks write the
            same file; or `others` is not empty, because predictions have no scores to compare.
    """
    predicted: dict[str, str] = {}
    for name, task in tasks:
        file = task.predictions_file
        if file and file in predicted:
            raise ConfigError(
                f"--task: {predicted[file]} and {name} both write {file}; allowed: one of them"
            )
        if file:
            predicted[file] = name
    names = ", ".join(predicted.values())
    if predicted and folder is None:
        raise ConfigError(
            f"--predictions: missing; allowed with --task {names}, whose answers are unknown: a folder for "
            "the predictions"
        )
    if predicted and others:
        raise ConfigError(
            f"--compare: found {', '.join(others)}; allowed with --task {names}: none, because its answers "
            "are unknown"
        )
    if folder is not None and not predicted:
        raise ConfigError(
            f"--predictions: found {folder}; allowed: only with a --task whose answers are unknown, such "
            "as glue with split=test"
        )


def check_kept_evaluations(workdir: Workdir, step: int, tasks: Sequence[NamedTask]) -> None:
    """Check, before evaluation, that predictions do not overwrite scores, nor scores predictions.

    Args:
        workdir: the workdir of the model, which stores evaluations by name.
        step: the step of the model's checkpoint.
        tasks: the tasks to evaluate.

    Raises:
        ConfigError: a task writes predictions under the name of stored scores, or the reverse; or a stored
            file is damaged.
    """
    for name, task in tasks:
        path = workdir.evaluation(step, name)
        if not exists(path):
            continue
        kept = parse_evaluation(read_bytes(path), str(path))
        # An evaluation without answers also has no scores.
        stored = "scores" if kept.metrics else "predictions" if kept.answers else ""
        new = "predictions" if task.predictions_file else "scores"
        if stored not in ("", new):
            raise ConfigError(
                f"--task: found the name {name}, for which {path} has {stored}; allowed for {new}: "
                f"another name, as in --task=NAME={task.name}:setting=value"
            )


def write_predictions(folder: str, tasks: Sequence[NamedTask], evaluations: Sequence[Evaluation]) -> None:
    """Write the predictions of each task that has a predictions file, and print the file names.

    Args:
        folder: the folder, or its URL. Created if it does not exist.
        tasks: the evaluated tasks.
        evaluations: the results of each task.
    """
    for named, (_, result) in zip(tasks, evaluations, strict=True):
        if not named.task.predictions_file:
            continue
        file = make_path(folder) / named.task.predictions_file
        if not is_remote(folder):
            file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, named.task.predictions(result.answers))
        print(f"{named.name}: {len(result.answers):,} predictions in {file}", file=sys.stderr)
