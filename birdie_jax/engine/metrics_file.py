"""`metrics.jsonl` and TensorBoard events, which after a kill read like those of a run never stopped."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from tensorboardX import SummaryWriter

from birdie_jax.storage import write_whole
from birdie_jax.storage.workdir import Workdir

# What every summary of train steps has, and no line of a hook.
STEP_LINE_KEY = "step_seconds"


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
        for line in kept:
            self.kept.update(json.loads(line))
        self._file = self._events = None
        if not writes:
            return
        write_whole(self.path, b"".join(kept))
        self._file = self.path.open("a", encoding="utf-8")
        self._events = SummaryWriter(str(workdir.tensorboard), purge_step=first_step + 1)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Append one object of `step` and `scalars`; a value that is not finite is left out."""
        if self._file is None or self._events is None:
            return
        finite = {name: value for name, value in scalars.items() if math.isfinite(value)}
        self._file.write(json.dumps({"step": step, **finite}) + "\n")
        self._file.flush()
        for name, value in finite.items():
            self._events.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close both."""
        for file in (self._file, self._events):
            if file is not None:
                file.close()


def _lines_up_to(path: Path, step: int, hooks_run_again: bool) -> list[bytes]:
    if not path.exists():
        return []
    kept = []
    with open(path, "rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                # A killed process leaves half a line at the end.
                break
            of_hook = STEP_LINE_KEY not in record
            if record["step"] > step or (record["step"] == step and of_hook and hooks_run_again):
                break
            kept.append(line)
    return kept
