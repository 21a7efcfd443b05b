"""What a workdir says about its run: configuration, arms, metrics and summary, checked."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from birdie_jax.reporting.errors import RecordError
from birdie_jax.reporting.metrics_table import MetricsTable, read_metrics


@dataclass(frozen=True)
class TextExample:
    """One example of an arm as text, special tokens by their names."""

    context: str
    target: str


@dataclass(frozen=True)
class Arm:
    """An objective with its parameters.

    Attributes:
        name: unique in the run.
        group: its class, over which the papers average.
        objective: name of the objective.
        parameters: its keyword arguments.
        weight: initial weight in the mixture, at least 0, in any unit.
        examples: a few examples of it.
    """

    name: str
    group: str
    objective: str
    parameters: dict[str, Any]
    weight: float
    examples: tuple[TextExample, ...]


@dataclass(frozen=True)
class RunRecord:
    """A run as its workdir tells it.

    Attributes:
        workdir: where it was read.
        config: config.json, nested dicts.
        arms: in the order of arms.json.
        metrics: metrics.jsonl.
        summary: summary.json; empty if the run has written none yet.
    """

    workdir: Path
    config: dict[str, Any]
    arms: tuple[Arm, ...]
    metrics: MetricsTable
    summary: dict[str, Any]

    @property
    def groups(self) -> dict[str, list[int]]:
        """Classes in order of their first arm, each with the indices of its arms."""
        groups: dict[str, list[int]] = {}
        for index, arm in enumerate(self.arms):
            groups.setdefault(arm.group, []).append(index)
        return groups

    def setting(self, name: str) -> Any:
        """Return a configuration value by its dotted name.

        Raises:
            RecordError: config.json lacks it.
        """
        value: Any = self.config
        for part in name.split("."):
            if not isinstance(value, dict) or part not in value:
                raise RecordError(f"{self.workdir / 'config.json'}: {name}: missing")
            value = value[part]
        return value


def read_run(workdir: Path) -> RunRecord:
    """Read the workdir of a finished or running run.

    Raises:
        RecordError: a file is missing or damaged; the message names it, and its line or record.
    """
    if not workdir.is_dir():
        raise RecordError(f"{workdir}: found no such directory; allowed: the --workdir of a training run")
    config = _read_object(workdir / "config.json")
    arms = _read_arms(workdir / "arms.json")
    metrics = read_metrics(workdir / "metrics.jsonl", [arm.name for arm in arms])
    summary_path = workdir / "summary.json"
    summary = _read_object(summary_path) if summary_path.exists() else {}
    return RunRecord(workdir, config, arms, metrics, summary)


def _read_json(path: Path) -> Any:
    if not path.is_file():
        raise RecordError(f"{path}: missing; allowed: the file that train writes")
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise RecordError(
            f"{path}: found no JSON ({error}); allowed: the file that train writes"
        ) from error


def _read_object(path: Path) -> dict[str, Any]:
    value = _read_json(path)
    if not isinstance(value, dict):
        raise RecordError(f"{path}: found {type(value).__name__}; allowed: a JSON object")
    return value


def _read_arms(path: Path) -> tuple[Arm, ...]:
    records = _read_json(path)
    if not isinstance(records, list) or not records:
        raise RecordError(f"{path}: found {type(records).__name__}; allowed: a list of at least one arm")
    arms: list[Arm] = []
    for number, record in enumerate(records, start=1):
        where = f"{path}: record {number}"
        name = _field(record, "name", str, where)
        if any(arm.name == name for arm in arms):
            raise RecordError(f"{where}: name: found {name!r} a second time; allowed: each name once")
        weight = _field(record, "weight", int | float, where)
        if not 0 <= weight < float("inf"):
            raise RecordError(f"{where}: weight: found {weight!r}; allowed: a finite number of at least 0")
        arms.append(
            Arm(
                name=name,
                group=_field(record, "group", str, where),
                objective=_field(record, "objective", str, where),
                parameters=_field(record, "parameters", dict, where),
                weight=float(weight),
                examples=tuple(
                    TextExample(
                        *(
                            _field(example, key, str, f"{where}: examples[{i}]")
                            for key in ("context", "target")
                        )
                    )
                    for i, example in enumerate(_field(record, "examples", list, where))
                ),
            )
        )
    if not any(arm.weight for arm in arms):
        raise RecordError(f"{path}: weight: found 0 for every arm; allowed: at least one weight above 0")
    return tuple(arms)


def _field(record: Any, key: str, kind: Any, where: str) -> Any:
    if not isinstance(record, dict) or key not in record:
        raise RecordError(f"{where}: {key}: missing")
    value = record[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        allowed = getattr(kind, "__name__", "a number")
        raise RecordError(f"{where}: {key}: found {value!r}; allowed: {allowed}")
    return value
