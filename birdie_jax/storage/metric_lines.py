"""The lines of a run's metrics: one file on a disk; parts in a bucket, where no object can be extended.

A part is an object `metrics/<number>.jsonl`. The first line of each start of the run states which earlier
lines are removed, because their steps run again: `{"continued_from": 400, "again": true}`.
"""

import json
from collections.abc import Callable
from typing import Any

from etils import epath

from birdie_jax.storage.files import exists, list_names, read_bytes
from birdie_jax.storage.json_text import parse_json
from birdie_jax.storage.object_store import is_remote
from birdie_jax.storage.workdir import Workdir

# A key that every summary of train steps has, and no line of a hook.
STEP_LINE_KEY = "step_seconds"
TIME_PREFIX = "time/"
"""The prefix of the scalars with the seconds of each category, over all starts of a run."""
BETWEEN_STARTS = f"{TIME_PREFIX}between_starts"
"""The seconds in which nothing ran."""
WALL_CLOCK = "unix_time"
"""The time of a line, in seconds since 1970."""
GOODPUT = "goodput"
"""The share of the seconds in which train steps that count ran."""
CLOCKED_SCALARS = (
    *("tokens_per_second", "host_wait_seconds", STEP_LINE_KEY, "elapsed_seconds", "mfu"),
    *(GOODPUT, WALL_CLOCK, "slowest_process", "slowest_host_seconds", "median_host_seconds"),
)
"""The loop's scalars that depend on a clock, in addition to the names with `TIME_PREFIX`."""
_CONTINUED = "continued_from"
_AGAIN = "again"


def is_clocked(name: str) -> bool:
    """Return whether a scalar depends on a clock, so a repeated run has another value."""
    return name in CLOCKED_SCALARS or name.startswith(TIME_PREFIX)


def is_time_use(name: str) -> bool:
    """Return whether a scalar belongs to the time use of a run over all its starts."""
    return name in (GOODPUT, WALL_CLOCK) or name.startswith(TIME_PREFIX)


def read_metric_lines(workdir: Workdir) -> list[bytes]:
    """Return the lines of `metrics.jsonl` with their line ends; for a run in a bucket, those of its parts.

    A workdir that was copied from a disk to a bucket has no parts yet. A copy from a bucket to a disk may
    have only parts. The result is empty if nothing was written. It includes lines that are not metrics.

    Raises:
        OSError: the lines cannot be read.
    """
    # In a bucket, the parts are newer than the file, which is written at the end. On a disk, it is newer.
    readings = [_lines_of_parts, _lines_of_file]
    for read in readings if is_remote(workdir.root) else reversed(readings):
        lines = read(workdir)
        if lines is not None:
            return lines
    return []


def _lines_of_parts(workdir: Workdir) -> list[bytes] | None:
    """Return the lines of all parts; None if there are no parts."""
    parts = metric_parts(workdir)
    lines: list[bytes] = []
    for part in parts:
        lines = _joined(lines, read_bytes(part).splitlines(keepends=True))
    return lines if parts else None


def _lines_of_file(workdir: Workdir) -> list[bytes] | None:
    """Return the lines of `metrics.jsonl`; None if there is no such file."""
    try:
        return read_bytes(workdir.metrics).splitlines(keepends=True)
    except FileNotFoundError:
        return None


def trained_speed(workdir: Workdir) -> float | None:
    """Return the last logged tokens per second of a run; None if there are none.

    Raises:
        OSError: the metrics cannot be read.
    """
    for line in reversed(read_metric_lines(workdir)):
        speed = (parse_line(line) or {}).get("tokens_per_second")
        if speed:
            return float(speed)
    return None


def has_begun(workdir: Workdir) -> bool:
    """Return whether a run in a workdir has saved or logged a train step.

    Raises:
        OSError: the workdir cannot be read.
    """
    if workdir.saved_steps() or exists(workdir.damaged_checkpoints):
        return True
    parsed = [parse_line(line) for line in read_metric_lines(workdir) if _parse_mark(line) is None]
    # An unreadable line may belong to any step.
    return any(scalars is None or scalars["step"] > 0 for scalars in parsed)


def metric_parts(workdir: Workdir) -> list[epath.Path]:
    """Return the metric parts of a run that is or was in a bucket, in order."""
    names = [name for name in list_names(workdir.metrics_parts) if part_number(name) is not None]
    return [workdir.metrics_parts / name for name in sorted(names)]


def part_number(name: str) -> int | None:
    """Return the number of a part from the name of its object, or None if it is not a part."""
    stem, _, suffix = name.partition(".")
    return int(stem) if suffix == "jsonl" and stem.isdigit() else None


def part_name(number: int) -> str:
    """Return the name of a part's object."""
    return f"{number:08d}.jsonl"


def continued_from(step: int, hooks_run_again: bool) -> bytes:
    """Return the first line of the first part of a start that resumes from `step`."""
    return (json.dumps({_CONTINUED: step, _AGAIN: hooks_run_again}) + "\n").encode()


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the object on a line, or None if training does not write such a line."""
    try:
        found = parse_json(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("step"), int):
        return None
    return found if all(isinstance(value, int | float) for value in found.values()) else None


def is_kept(scalars: dict[str, Any], step: int, hooks_run_again: bool) -> bool:
    """Return whether a line stays when a run resumes from `step`.

    Args:
        scalars: the scalars of the line.
        step: the step from which the run resumes.
        hooks_run_again: whether the hooks that were due at that step run again.
    """
    of_hook = STEP_LINE_KEY not in scalars
    return scalars["step"] < step or (scalars["step"] == step and not (of_hook and hooks_run_again))


def _joined(lines: list[bytes], part: list[bytes]) -> list[bytes]:
    """Return the lines after one more part: without the lines that it removes, and with its own."""
    for line in part:
        mark = _parse_mark(line)
        if mark is None:
            lines.append(line)
        else:
            lines = _without(lines, lambda scalars, mark=mark: is_kept(scalars, *mark))
    return lines


def _without(lines: list[bytes], keeps: Callable[[dict[str, Any]], bool]) -> list[bytes]:
    parsed = [(line, parse_line(line)) for line in lines]
    return [line for line, scalars in parsed if scalars is None or keeps(scalars)]


def _parse_mark(line: bytes) -> tuple[int, bool] | None:
    if _CONTINUED.encode() not in line:
        return None
    try:
        found = parse_json(line)
        return int(found[_CONTINUED]), bool(found[_AGAIN])
    except (ValueError, TypeError, KeyError):
        return None
