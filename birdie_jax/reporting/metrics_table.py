"""Reads metrics.jsonl as columns: an array per scalar, a matrix [lines, arms] per arm quantity."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from birdie_jax.errors import RecordError, shown
from birdie_jax.metric_names import ARM_PREFIX, DECISION_QUANTITIES, TRAINING_QUANTITIES
from birdie_jax.reporting.json_records import is_there, read_file
from birdie_jax.storage import is_remote
from birdie_jax.storage.json_text import parse_json
from birdie_jax.storage.metric_lines import read_metric_lines
from birdie_jax.storage.workdir import Workdir

# The maximum of a NumPy column.
_MAX_STEP = np.iinfo(np.int64).max
_MAX_INTEGER = 10**308

ARM_QUANTITIES = (*TRAINING_QUANTITIES, *DECISION_QUANTITIES)


class NoMetricsError(RecordError):
    """A run has no line of metrics, or none yet; the message names the file."""


@dataclass(frozen=True)
class MetricsTable:
    """The lines of metrics.jsonl in the order of their steps; missing values are NaN.

    Attributes:
        steps: the train step of each line, strictly increasing.
        scalars: the column of each scalar of the whole run, such as `loss`.
        arm_values: the matrix [lines, arms] of each of `ARM_QUANTITIES` and of other logged quantities.
        notices: sentences about the file, for the page.
    """

    steps: Int[np.ndarray, " lines"]
    scalars: dict[str, Float[np.ndarray, " lines"]]
    arm_values: dict[str, Float[np.ndarray, "lines arms"]]
    notices: tuple[str, ...]

    def scalar(self, name: str) -> Float[np.ndarray, " lines"]:
        """Return column `name`; all NaN if no line has it."""
        return self.scalars.get(name, np.full(len(self.steps), np.nan))


def read_metrics(workdir: Workdir, arm_names: Iterable[str]) -> MetricsTable:
    """Read the metrics of a run.

    A run that was killed and restarted repeats steps: a line replaces earlier lines of the same step and of
    later steps. If the last line is not JSON, as after a kill, it is dropped with a notice. If the arms are
    unknown, their scalars are ordinary columns.

    Raises:
        NoMetricsError: the file is missing or has no lines.
        RecordError: the file cannot be read, or a line is damaged or names an unknown arm.
    """
    arm_index = {name: index for index, name in enumerate(arm_names)}
    path, lines = workdir.metrics, _read_lines(workdir)
    records: list[dict[str, Any]] = []
    notices: list[str] = []
    superseded = 0
    columns: dict[str, tuple[str, int]] = {}  # key -> (quantity, arm), or (key, -1) for a scalar
    for number, line in enumerate(lines, start=1):
        try:
            record = parse_json(line)
        except ValueError as error:
            if number == len(lines):
                notices.append(
                    f"The last line of {path.name} (line {number}) is damaged, as an "
                    "interrupted write leaves it, and was left out."
                )
                continue
            raise RecordError(
                f"{path}:{number}: found {shown(line, 60)} ({error}); allowed: one JSON object"
            ) from error
        _check_line(record, f"{path}:{number}", arm_index, columns)
        while records and records[-1]["step"] > record["step"]:
            records.pop()
            superseded += 1
        if records and records[-1]["step"] == record["step"]:
            records[-1] = records[-1] | record
        else:
            records.append(record)
    if not records:
        raise NoMetricsError(
            f"{path}: found {len(lines)} lines, none readable; allowed: at least one JSON object"
        )
    if not arm_index and any(key.startswith(ARM_PREFIX) for key in columns):
        notices.append("The workdir has no arms.json: the scalars of arms are shown as they were logged.")
    if superseded:
        notices.append(
            f"{superseded} lines of {path.name} belong to an attempt that was resumed from before them."
        )
    return _as_columns(records, columns, len(arm_index), notices)


def _read_lines(workdir: Workdir) -> list[bytes]:
    if not is_remote(workdir.root):
        return _read_file(workdir).splitlines()
    try:
        lines = read_metric_lines(workdir)
    except OSError as error:
        raise RecordError(f"{workdir.metrics}: cannot be read: {error}") from error
    return lines or _read_file(workdir).splitlines()


def _read_file(workdir: Workdir) -> bytes:
    try:
        return read_file(workdir.metrics)
    except RecordError as error:
        if is_there(workdir.metrics):
            raise
        raise NoMetricsError(str(error)) from error


def _check_line(
    record: Any, where: str, arm_index: dict[str, int], columns: dict[str, tuple[str, int]]
) -> None:
    if not isinstance(record, dict):
        raise RecordError(f"{where}: found {shown(record, 60)}; allowed: a JSON object")
    step = record.get("step")
    if type(step) is not int or not 0 <= step <= _MAX_STEP:
        raise RecordError(f"{where}: step: found {shown(step, 40)}; allowed: an integer of at least 0")
    for key, value in record.items():
        if type(value) not in (int, float) or (type(value) is int and abs(value) > _MAX_INTEGER):
            raise RecordError(f"{where}: {key}: found {shown(value, 60)}; allowed: a number")
        if key in columns or key == "step":
            continue
        if not arm_index or not key.startswith(ARM_PREFIX):
            columns[key] = (key, -1)
            continue
        name, slash, quantity = key.removeprefix(ARM_PREFIX).rpartition("/")
        if not slash or name not in arm_index:
            raise RecordError(
                f"{where}: {key}: found arm {name!r}; allowed: arm/<name>/<quantity> of an arm in arms.json"
            )
        columns[key] = (quantity, arm_index[name])


def _as_columns(
    records: list[dict[str, Any]], columns: dict[str, tuple[str, int]], arms: int, notices: list[str]
) -> MetricsTable:
    shape = (len(records), arms)
    scalars = {name: np.full(len(records), np.nan) for name, arm in columns.values() if arm < 0}
    arm_values = {name: np.full(shape, np.nan) for name in ARM_QUANTITIES}
    for name, arm in columns.values():
        if arm >= 0 and name not in arm_values:
            arm_values[name] = np.full(shape, np.nan)
    non_finite = 0
    for row, record in enumerate(records):
        for key, value in record.items():
            if key == "step":
                continue
            name, arm = columns[key]
            if arm < 0:
                scalars[name][row] = value
            else:
                arm_values[name][row, arm] = value
        non_finite += "loss" in record and not np.isfinite(record["loss"])
    if non_finite:
        notices.append(f"The training loss is not finite on {non_finite} of {len(records)} lines.")
    skipped = int(np.nanmax(scalars["skipped_steps"], initial=0)) if "skipped_steps" in scalars else 0
    if skipped:
        notices.append(f"The run skipped {skipped} steps, which changed nothing (docs/operate.md).")
    extra = sorted(set(arm_values) - set(ARM_QUANTITIES))
    if extra:
        notices.append(f"Quantities of arms that this page does not show: {', '.join(extra)}.")
    steps = np.array([record["step"] for record in records])
    return MetricsTable(steps, scalars, arm_values, tuple(notices))
