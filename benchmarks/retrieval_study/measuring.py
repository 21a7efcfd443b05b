"""Measuring of a run: which tasks, by which command, and what is kept of every answer."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.retrieval_study.baselines import commonest_digits, copy_any_entry
from benchmarks.retrieval_study.plans import Scale
from benchmarks.retrieval_study.text import Corpus
from benchmarks.retrieval_study.verbs import Command

COPIED_DIGITS, COMMONEST_DIGITS = "copy_any_digit_accuracy", "commonest_digit_accuracy"
ABOVE_COMMONEST = "digit_accuracy_above_commonest"
LANGUAGE, INFILLING = "held_out_text", "infilling"
# All documents of a file that holds nothing else.
_ALL = 1 - 2**-30
_RECALL_LENGTHS = 8
_SHOWN_ANSWERS = 4
_DIGITS = 6


def pretrained_tasks(scale: Scale, corpus: Corpus) -> dict[str, dict[str, Any]]:
    """Return the tasks that a pre-trained model is measured on as it is, by name."""
    plan = scale.measuring
    passages = {
        "lengths": plan.lengths,
        "questions_per_length": plan.questions_per_length,
        "source": str(corpus.held_out),
        "validation_fraction": _ALL,
    }
    selective = {"task": "selective_copying_by_length", "spans": 1, **passages}
    recall = {
        f"associative_recall_{pairs}": {
            "task": "associative_recall",
            "vocab_size": plan.recall_vocabulary,
            "sequence_length": _RECALL_LENGTHS * pairs,
            "key_value_pairs": pairs,
            "num_sequences": plan.recall_sequences,
        }
        for pairs in plan.pairs
    }
    return {
        "copying": {"task": "copying_by_length", **passages},
        "selective_copying_first": {**selective, "query_first": True},
        "selective_copying_last": {**selective, "query_first": False},
        **recall,
        INFILLING: {"task": "infilling", "path": str(corpus.stories)},
        LANGUAGE: {
            "task": "perplexity",
            "path": str(corpus.held_out),
            "window": plan.window,
            "max_documents": plan.documents,
        },
    }


def evaluate_command(
    tasks: Mapping[str, Mapping[str, Any]], workdir: Path | str, step: int | None = None
) -> Command:
    """Return the command that measures a model on tasks, and writes its answers into the workdir."""
    chosen = [] if step is None else [f"--step={step}"]
    return Command("evaluate", (f"--workdir={workdir}", *chosen, *map(_task_flag, tasks, tasks.values())))


def _task_flag(name: str, settings: Mapping[str, Any]) -> str:
    written = ",".join(f"{key}={json.dumps(value)}" for key, value in settings.items() if key != "task")
    return f"--task={name}={settings['task']}:{written}"


def measured(workdir: Path, step: int, names: Sequence[str]) -> dict[str, Any] | None:
    """Return what `evaluate` found of a checkpoint on tasks, as plain JSON; None where one is missing.

    Of every answer its scores, weight and groups are kept, and of the questions a hash, by which two runs
    know that they were asked the same. Phone books have three metrics more: what copying any entry and
    giving the commonest digits are expected to give, and what the answer has beyond the latter.
    """
    folder = workdir / "evaluations" / f"{step:08d}"
    if not all((folder / f"{name}.json").exists() for name in names):
        return None
    return {name: _measured_task(folder, name) for name in names}


def _measured_task(folder: Path, name: str) -> dict[str, Any]:
    record = json.loads((folder / f"{name}.json").read_text())
    lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    # Names hold the paths of files, which are other ones on another machine.
    asked = [[line[part] for part in ("prompt", "references", "weight", "groups")] for line in lines]
    if record["task"] == "phonebook":
        for line in lines:
            asked_of = line["prompt"], line["references"][0]
            commonest = commonest_digits(*asked_of)
            line["metrics"] |= {
                COPIED_DIGITS: copy_any_entry(*asked_of),
                COMMONEST_DIGITS: commonest,
                ABOVE_COMMONEST: line["metrics"]["digit_accuracy"] - commonest,
            }
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
