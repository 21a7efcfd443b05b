"""The outputs of a run in its workdir: metrics, training records, and measurements by `evaluate`."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from birdie_jax.metric_names import EARNED_REWARD, PREDICTED_REWARD
from birdie_jax.storage import metric_lines
from birdie_jax.storage.workdir import Workdir
from studies.verbs import Command, RunVerb, StudyError

_DIGITS = 6

# (kind of the task, one of its answers) -> metrics that the task does not have.
MoreMetrics = Callable[[str, Mapping[str, Any]], Mapping[str, float]]


def is_trained(workdir: Path) -> bool:
    """Return whether a workdir's training is complete."""
    summary = workdir / "summary.json"
    return summary.exists() and json.loads(summary.read_text())["completed"]


def last_step(workdir: Path) -> int:
    """Return the last step of a run."""
    return json.loads((workdir / "summary.json").read_text())["num_steps"]


def read_metric_lines(workdir: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics, sorted by step.

    A resumed run repeats steps. Later lines replace earlier ones.
    """
    by_step: dict[int, dict[str, Any]] = defaultdict(dict)
    for line in metric_lines.read_metric_lines(Workdir(workdir)):
        scalars = metric_lines.parse_line(line)
        # A killed process may leave an incomplete last line.
        if scalars is not None:
            by_step[scalars["step"]].update(scalars)
    return [by_step[step] for step in sorted(by_step)]


def training_record(workdir: Path, is_recorded: Callable[[str], bool]) -> dict[str, Any]:
    """Return the configuration, the summary, the losses by step, and the curve of each recorded metric."""
    lines = read_metric_lines(workdir)
    names = sorted({name for line in lines for name in line if is_recorded(name)})
    return {
        "config": json.loads((workdir / "config.json").read_text()),
        "summary": json.loads((workdir / "summary.json").read_text()),
        "losses": [(line["step"], line["loss"]) for line in lines if "loss" in line],
        "curves": {name: [(line["step"], line[name]) for line in lines if name in line] for name in names},
    }


def read_record(record: Path, text: str) -> dict[str, Any] | None:
    """Return the record of a corpus; None if the corpus is incomplete (its record is written last).

    Raises:
        StudyError: the corpus has another text.
    """
    if not record.exists():
        return None
    found = json.loads(record.read_text())
    if found["text"] != text:
        raise StudyError(
            f"{record}: found a corpus of {found['text']}; allowed: {text}, or another --workdirs"
        )
    return found


def json_lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    """Return records as JSON lines."""
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def evaluate_command(
    tasks: Mapping[str, Mapping[str, Any]], workdir: Path | str, step: int | None = None
) -> Command:
    """Return the command that measures a model on tasks and writes the answers to the workdir."""
    chosen = [] if step is None else [f"--step={step}"]
    return Command("evaluate", (f"--workdir={workdir}", *chosen, *map(_task_flag, tasks, tasks.values())))


def _task_flag(name: str, settings: Mapping[str, Any]) -> str:
    written = ",".join(f"{key}={json.dumps(value)}" for key, value in settings.items() if key != "task")
    return f"--task={name}={settings['task']}:{written}"


def measure(  # noqa: PLR0917
    run_verb: RunVerb,
    tasks: Mapping[str, Mapping[str, Any]],
    workdir: Path,
    step: int,
    log: Path,
    more_metrics: MoreMetrics | None = None,
) -> dict[str, Any]:
    """Measure a checkpoint on tasks unless that is done; return the measurements as `measured` does."""
    found = measured(workdir, step, list(tasks), more_metrics)
    if found is None:
        run_verb(evaluate_command(tasks, workdir, step), log)
        found = measured(workdir, step, list(tasks), more_metrics)
    assert found is not None
    return found


def measured(
    workdir: Path, step: int, names: Sequence[str], more_metrics: MoreMetrics | None = None
) -> dict[str, Any] | None:
    """Return the results of `evaluate` for a checkpoint, as plain JSON; None if a task has no result.

    The return value has the scores, weight and groups of every answer, and a hash of the questions.
    Comparisons require equal hashes.

    Args:
        workdir: the workdir.
        step: the step of the checkpoint.
        names: the names of the tasks.
        more_metrics: returns metrics that the tasks do not have.
    """
    folder = workdir / "evaluations" / f"{step:08d}"
    if not all((folder / f"{name}.json").exists() for name in names):
        return None
    return {name: _measured_task(folder, name, more_metrics) for name in names}


def _measured_task(folder: Path, name: str, more_metrics: MoreMetrics | None) -> dict[str, Any]:
    record = json.loads((folder / f"{name}.json").read_text())
    # Text would also be split at separators within an answer, such as U+2028.
    lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_bytes().splitlines()]
    # Leave out names: they hold paths, which differ between machines.
    questions = [[line[part] for part in ("prompt", "references", "weight", "groups")] for line in lines]
    if more_metrics is not None:
        for line in lines:
            line["metrics"] |= more_metrics(record["task"], line)
    metrics = list(lines[0]["metrics"]) if lines else []
    groups = sorted({group for line in lines for group in line["groups"]})
    return {
        "task": record["task"],
        "settings": record["settings"],
        "main_metric": record["main_metric"],
        "refused": len(record["refused"]),
        "questions_sha256": hashlib.sha256(json.dumps(questions).encode()).hexdigest(),
        "weights": [round(line["weight"], _DIGITS) for line in lines],
        "groups": {group: [line["groups"].get(group) for line in lines] for group in groups},
        "scores": {
            metric: [round(line["metrics"][metric], _DIGITS) for line in lines] for metric in metrics
        },
    }


def read_decisions(workdir: Path) -> dict[str, Any]:
    """Return the measurements of every arm by decision. The last decision is the end of the run."""
    lines = [
        line for line in read_metric_lines(workdir) if any("/validation_loss" in name for name in line)
    ]
    arms = sorted(name.split("/")[1] for name in lines[0] if name.endswith("/validation_loss"))

    def values(metric: str, lines: Sequence[Mapping[str, Any]]) -> list[list[float]]:
        return [[line[f"arm/{arm}/{metric}"] for arm in arms] for line in lines]

    return {
        "arms": arms,
        "steps": [line["step"] for line in lines],
        "validation_loss": values("validation_loss", lines),
        "validation_accuracy": values("validation_accuracy", lines),
        "probability": values("probability", lines[:-1]),
        "reward": values("reward", lines[1:]),
        # No mixture follows the last decision, and no reward precedes the first.
        **{
            name.rpartition("/")[2]: [line[name] for line in lines if name in line]
            for name in (PREDICTED_REWARD, EARNED_REWARD)
            if any(name in line for line in lines)
        },
    }
