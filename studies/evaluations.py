"""Measuring a workdir by `evaluate`: the command, and what is kept of every answer."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.verbs import Command

_SHOWN_ANSWERS = 4
_DIGITS = 6

# (the kind of the task, one of its answers) -> metrics beside those that the task has
MoreMetrics = Callable[[str, Mapping[str, Any]], Mapping[str, float]]


def evaluate_command(
    tasks: Mapping[str, Mapping[str, Any]], workdir: Path | str, step: int | None = None
) -> Command:
    """Return the command that measures a model on tasks, and writes its answers into the workdir."""
    chosen = [] if step is None else [f"--step={step}"]
    return Command("evaluate", (f"--workdir={workdir}", *chosen, *map(_task_flag, tasks, tasks.values())))


def _task_flag(name: str, settings: Mapping[str, Any]) -> str:
    written = ",".join(f"{key}={json.dumps(value)}" for key, value in settings.items() if key != "task")
    return f"--task={name}={settings['task']}:{written}"


def no_more_metrics(kind: str, answer: Mapping[str, Any]) -> Mapping[str, float]:
    """Return none."""
    del kind, answer
    return {}


def measured(
    workdir: Path, step: int, names: Sequence[str], more_metrics: MoreMetrics = no_more_metrics
) -> dict[str, Any] | None:
    """Return what `evaluate` found of a checkpoint on tasks, as plain JSON; None where one is missing.

    Of every answer its scores, weight and groups are kept, and of the questions a hash, by which two runs
    know that they were asked the same.

    Args:
        workdir: the workdir.
        step: the step of the checkpoint.
        names: the names of the tasks.
        more_metrics: gives metrics that the tasks do not have.
    """
    folder = workdir / "evaluations" / f"{step:08d}"
    if not all((folder / f"{name}.json").exists() for name in names):
        return None
    return {name: _measured_task(folder, name, more_metrics) for name in names}


def _measured_task(folder: Path, name: str, more_metrics: MoreMetrics) -> dict[str, Any]:
    record = json.loads((folder / f"{name}.json").read_text())
    lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    # Names hold the paths of files, which are other ones on another machine.
    asked = [[line[part] for part in ("prompt", "references", "weight", "groups")] for line in lines]
    for line in lines:
        line["metrics"] |= more_metrics(record["task"], line)
    metrics = list(lines[0]["metrics"]) if lines else []
    groups = sorted({group for line in lines for group in line["groups"]})
    return {
        "task": record["task"],
        "settings": record["settings"],
        "main_metric": record["main_metric"],
        "refused": record["refused"],
        "questions_sha256": hashlib.sha256(json.dumps(asked).encode()).hexdigest(),
        "weights": [round(line["weight"], _DIGITS) for line in lines],
        "groups": {group: [line["groups"].get(group) for line in lines] for group in groups},
        "scores": {
            metric: [round(line["metrics"][metric], _DIGITS) for line in lines] for metric in metrics
        },
        "examples": [
            {"prompt": line["prompt"], "answer": line["answer"], "references": line["references"]}
            for line in lines[:_SHOWN_ANSWERS]
            if line["prompt"]
        ],
    }
