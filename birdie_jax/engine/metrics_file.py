"""`metrics.jsonl` and TensorBoard events, which after a kill read like those of a run never stopped."""

import contextlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import logging

from birdie_jax.engine.tensorboard_events import TensorBoardEvents
from birdie_jax.storage import write_whole
from birdie_jax.storage.workdir import Workdir

# What every summary of train steps has, and no line of a hook.
STEP_LINE_KEY = "step_seconds"
_DAMAGED_LINES_SHOWN = 10


class MetricsFile:
    """`metrics.jsonl` and TensorBoard events of a workdir, continued from a step on.

    What a killed run wrote beyond the step it resumes from is taken back: those steps are run again, and
    the finished file reads like that of a run that was never stopped.

    Attributes:
        path: the path of the JSON lines.
        kept: the newest value of every scalar up to the step that the file was continued from.
    """

    def __init__(
        self, workdir: Workdir, first_step: int, hooks_run_again: bool = False, *, writes: bool = True
    ):
        """Open both for appending after step `first_step`; at step 0 they begin anew.

        Args:
            workdir: the folder of the run.
            first_step: the step that the run continues from.
            hooks_run_again: whether the hooks that were due at `first_step` run once more.
            writes: False in a process that only measures, and leaves both to another.
        """
        self.path = Path(workdir.metrics)
        kept = _lines_up_to(self.path, first_step, hooks_run_again) if first_step else []
        self.kept: dict[str, float] = {}
        for _, scalars in kept:
            self.kept.update(scalars)
        self._file = self._events = None
        if not writes:
            return
        write_whole(self.path, b"".join(line for line, _ in kept))
        self._file = self.path.open("a", encoding="utf-8")
        self._events = TensorBoardEvents(Path(workdir.tensorboard), first_step + 1)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Append one object of `step` and `scalars`; a value that is not finite is left out.

        Raises:
            OSError: it cannot be written, for instance on a full disk; names the file.
        """
        if self._file is None or self._events is None:
            return
        finite = {name: value for name, value in scalars.items() if math.isfinite(value)}
        try:
            self._file.write(json.dumps({"step": step, **finite}) + "\n")
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self._events.write(step, finite)

    def flush(self) -> None:
        """Bring to the disk what was written; a checkpoint is to find the metrics of its steps there.

        Raises:
            OSError: the disk refuses.
        """
        if self._events is not None:
            self._events.flush()

    def close(self) -> None:
        """Flush and close both."""
        with contextlib.ExitStack() as closed:
            for file in (self._file, self._events):
                if file is not None:
                    closed.callback(file.close)


def _lines_up_to(path: Path, step: int, hooks_run_again: bool) -> list[tuple[bytes, dict[str, Any]]]:
    """Return the lines of the steps up to `step`, and what they say; damaged ones are named."""
    if not path.exists():
        return []
    kept, damaged = [], []
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            # A killed process leaves half a line at the end.
            scalars = _parse_line(line) if line.endswith(b"\n") else {}
            if scalars is None:
                damaged.append(number)
            elif scalars and _is_kept(scalars, step, hooks_run_again):
                kept.append((line, scalars))
    if damaged:
        shown = ", ".join(map(str, damaged[:_DAMAGED_LINES_SHOWN]))
        more = ", ..." if len(damaged) > _DAMAGED_LINES_SHOWN else ""
        logging.warning(
            "%s: %d lines are no metrics and are left out: line %s%s", path, len(damaged), shown, more
        )
    return kept


def _parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the object on a line, or None if it is not one that `MetricsFile.write` writes."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("step"), int):
        return None
    return found if all(isinstance(value, int | float) for value in found.values()) else None


def _is_kept(scalars: dict[str, Any], step: int, hooks_run_again: bool) -> bool:
    of_hook = STEP_LINE_KEY not in scalars
    return scalars["step"] < step or (scalars["step"] == step and not (of_hook and hooks_run_again))
