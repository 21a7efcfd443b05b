"""An evaluation: a task under a name, measured, summed up, and written for people and programs."""

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from birdie_jax.config_errors import ConfigError
from birdie_jax.evaluation_record import EvaluatedModel, EvaluationRecord
from birdie_jax.generation import choose_arm
from birdie_jax.objectives import Arm
from birdie_jax.storage import shown
from birdie_jax.tasks.question import ScoredAnswer, TaskResult
from birdie_jax.tasks.registry import task_of_flag, task_of_section
from birdie_jax.tasks.summary import summarise
from birdie_jax.tasks.task import Task
from birdie_jax.tasks.task_model import Progress, TaskModel, no_progress

# A name is part of files' and metrics' names.
_NAME = re.compile(r"[A-Za-z0-9_]{1,100}")
_NAMED_FLAG = re.compile(r"(?P<name>[A-Za-z0-9_]+)=(?P<task>[A-Za-z0-9_]+(?::.*)?)", re.DOTALL)


class NamedTask(NamedTuple):
    """A task under the name of its evaluation.

    Attributes:
        name: the name of the evaluation: letters, digits and underscores.
        task: the task.
    """

    name: str
    task: Task


class Evaluation(NamedTuple):
    """What an evaluation found.

    Attributes:
        record: the scores.
        result: the answers.
    """

    record: EvaluationRecord
    result: TaskResult


def tasks_of_flags(values: Sequence[str], flag: str = "--task") -> list[NamedTask]:
    """Return the tasks that flags ask for: `TASK`, `TASK:setting=value,...`, or `NAME=TASK:...`.

    Raises:
        ConfigError: a task or a setting cannot be used, or two evaluations have the same name.
    """
    named = []
    for value in values:
        match = _NAMED_FLAG.fullmatch(value)
        task = task_of_flag(match["task"] if match else value, flag)
        named.append(NamedTask(match["name"] if match else task.name, task))
    names = [one.name for one in named]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"{flag}: {names.count(name)} evaluations are called {name}; allowed: a name for each, as "
                f"in {flag}=NAME={name}:setting=value"
            )
    return named


def tasks_of_config(sections: Mapping[str, Any], where: str) -> list[NamedTask]:
    """Return the tasks of a section `name -> {task, **settings}`, by name.

    Args:
        sections: the section.
        where: its path, for messages: `config.eval.tasks`.

    Raises:
        ConfigError: a name, a task or a setting cannot be used.
    """
    for name in sections:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{where}: found the name {shown(name)}; allowed: letters, digits, underscores, at most 100"
            )
    return [
        NamedTask(name, task_of_section(sections[name], f"{where}.{name}")) for name in sorted(sections)
    ]


def arm_of_tasks(arms: Sequence[Arm], name: str | None, tasks: Sequence[NamedTask]) -> Arm:
    """Return the arm in whose format tasks ask a model.

    Args:
        arms: the arms that the model was trained on; none where they are not known.
        name: the name of an objective or of an arm; None = as `choose_arm` has it.
        tasks: the tasks.

    Raises:
        ConfigError: a task hides tokens in place, which the model has not learned.
        PromptError: a task asks prompts, and no arm has the format of one; see `choose_arm`.
    """
    in_place = [arm for arm in arms if arm.objective.in_place]
    for named in tasks:
        if named.task.in_place and arms and not in_place:
            raise ConfigError(
                f"task {named.task.name}: the model was trained on "
                f"{', '.join(dict.fromkeys(arm.objective.name for arm in arms))}; allowed: one that has "
                "learned to name hidden tokens, by masked_lm"
            )
    if in_place and tasks and all(named.task.in_place for named in tasks):
        return in_place[0]
    return choose_arm(arms, name)


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
        identity: which model it is.
        progress: called with the number of questions done and of all.
        seed: the seed of the bootstrap's resamples.

    Raises:
        DataError: the task's data cannot be read; names file and record.
    """
    begin = time.monotonic()
    result = named.task.measure(model, progress)
    seconds = time.monotonic() - begin
    return Evaluation(
        summarise(named.name, named.task, identity, result, seconds=seconds, seed=seed), result
    )


def answers_to_jsonl(answers: Iterable[ScoredAnswer]) -> bytes:
    """Return questions, answers and scores for reading, one JSON object a line."""
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
            **({"details": dict(answer.details)} if answer.details else {}),
        }
        text = json.dumps(line, ensure_ascii=False)
        try:
            lines.append(text.encode())
        except UnicodeEncodeError:
            # Half of a character, which JSON can say and UTF-8 cannot.
            lines.append(json.dumps(line).encode())
    return b"".join(line + b"\n" for line in lines)
