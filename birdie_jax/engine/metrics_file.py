"""Write `metrics.jsonl` and TensorBoard events, which are the same after a kill and a resume."""

import contextlib
import json
import math
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from absl import logging

from birdie_jax.engine.time_use import TIME_SCALARS
from birdie_jax.errors import ConfigError
from birdie_jax.storage import is_remote, naming, remove, write_whole
from birdie_jax.storage.metric_lines import (
    CLOCKED_SCALARS,
    STEP_LINE_KEY,
    continued_from,
    is_kept,
    metric_parts,
    parse_line,
    part_name,
    part_number,
    read_metric_lines,
)
from birdie_jax.storage.workdir import Workdir

_FLUSH_SECONDS = 30.0


class TensorBoardEvents:
    """A new TensorBoard event file that begins at a step."""

    def __init__(self, folder: Path, first_step: int):
        """Open a new file; TensorBoard hides older events of `first_step` and later steps.

        Raises:
            OSError: the folder or the file cannot be created.
        """
        # tensorboardX imports the client of Google Cloud Storage if it is installed: half a second.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2
        from tensorboardX.summary import scalar

        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        session_log = event_pb2.SessionLog  # pyright: ignore[reportAttributeAccessIssue]
        self._event, self._scalar = event_pb2.Event, scalar  # pyright: ignore[reportAttributeAccessIssue]
        # Two runs that start within one second must not use the same file.
        with naming(folder):
            self._writer = EventsWriter(str(folder / "events"), f".{secrets.token_hex(4)}")
            self._writer.write_event(self._event(step=first_step, file_version="brain.Event:2"))
            started = session_log(status=session_log.START)
            self._writer.write_event(self._event(step=first_step, session_log=started))
        self._flushed = time.monotonic()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Append finite scalars of a step.

        Raises:
            OSError: the write fails; the message names the folder.
        """
        with naming(self._folder):
            for name, value in scalars.items():
                summary = self._scalar(name, value)
                self._writer.write_event(self._event(step=step, wall_time=time.time(), summary=summary))
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the buffered events to the disk.

        Raises:
            OSError: the write fails; the message names the folder.
        """
        with naming(self._folder):
            self._writer.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Flush and close the file.

        Raises:
            OSError: the write fails; the message names the folder.
        """
        with naming(self._folder):
            self._writer.close()


__all__ = ["STEP_LINE_KEY", "STEP_SCALARS", "MetricsFile"]

STEP_SCALARS = (
    *("step", "loss", "grad_norm", "tokens_seen", "skipped_steps"),
    *(*CLOCKED_SCALARS, *TIME_SCALARS),
)
"""The names of the scalars that the loop logs for every `Step`."""

THE_STEP = "the train step"
"""The owner of these scalars, in messages."""

_DAMAGED_LINES_SHOWN = 10
# A run that begins at step 0 keeps no lines, not even those of step 0.
_NO_STEP = -1
# The interval of uploads to a bucket. The lines are also uploaded before each checkpoint.
_UPLOAD_SECONDS = 30.0
# Events are uploaded less often, because each upload contains the whole file.
_UPLOADS_FOR_EVENTS = 4


class MetricsFile:
    """`metrics.jsonl` and TensorBoard events of a workdir, continued from a step.

    If a run is killed, its lines after the step of the checkpoint are removed, because those steps run
    again. The finished file is like that of an uninterrupted run. In a bucket, a thread uploads the lines
    in parts, and as one file at the end.

    Attributes:
        path: the path of the JSON lines.
        kept: the newest value of every scalar up to the step that the file continues from.
        last: the newest value of every scalar that an earlier start wrote.
    """

    def __init__(
        self,
        workdir: Workdir,
        first_step: int,
        hooks_run_again: bool = False,
        *,
        writes: bool = True,
        on_scalars: Callable[[int, Mapping[str, float]], None] | None = None,
    ):
        """Open both files to append after step `first_step`; at step 0 they start empty.

        Args:
            workdir: the folder of the run.
            first_step: the step that the run continues from.
            hooks_run_again: whether the hooks that were due at `first_step` run again.
            writes: False in a process that only measures, while another one writes.
            on_scalars: also called with each step and its written scalars.
        """
        self.path = workdir.metrics
        found = _lines_of(workdir) if first_step else []
        kept = [one for one in found if is_kept(one[1], first_step, hooks_run_again)]
        self.kept, self.last = (_newest(lines) for lines in (kept, found))
        self._owners = dict.fromkeys(STEP_SCALARS, THE_STEP)
        self._warned: set[str] = set()
        self._on_scalars = on_scalars
        self._lines: _LocalLines | _BucketLines | None = None
        if not writes:
            return
        lines = [line for line, _ in kept]
        if is_remote(workdir.root):
            self._lines = _BucketLines(workdir, first_step, hooks_run_again, lines)
        else:
            self._lines = _LocalLines(workdir, first_step, lines)

    def write(self, step: int, scalars: Mapping[str, float], owner: str = THE_STEP) -> None:
        """Append one JSON object with `step` and `scalars`.

        JSON has no NaN and no infinity. Such a value is omitted, with one warning for each name.

        Args:
            step: the number of train steps done.
            scalars: the scalars to log, by name.
            owner: the part that measured them, for messages, such as "hook 'best'".

        Raises:
            ConfigError: another owner logs a scalar of the same name; readers keep only one for each step.
            OSError: the write fails, for example on a full disk; the message names the file.
        """
        for name in scalars:
            first = self._owners.setdefault(name, owner)
            if first != owner:
                raise ConfigError(
                    f"{owner}: found the scalar {name!r}, which {first} logs; allowed: a name of its own, "
                    "such as best/error"
                )
        if self._lines is None:
            return
        finite = {name: value for name, value in scalars.items() if math.isfinite(value)}
        for name in scalars.keys() - finite.keys() - self._warned:
            self._warned.add(name)
            logging.warning(
                "%s: step %d: %s is %.4g, and is left out; so are further values of it that are not finite",
                *(self.path, step, name, scalars[name]),
            )
        self._lines.append(json.dumps({"step": step, **finite}) + "\n")
        self._lines.events.write(step, finite)
        if self._on_scalars is not None:
            self._on_scalars(step, finite)

    def flush(self) -> None:
        """Write the buffered metrics to the disk or the bucket, before a checkpoint of their steps.

        Raises:
            OSError: the write fails.
        """
        if self._lines is not None:
            self._lines.flush()

    def finish(self) -> None:
        """Write everything at the end of the run; in a bucket, also join the parts into one file.

        Raises:
            OSError: the write fails.
        """
        if self._lines is not None:
            self._lines.finish()

    def close(self) -> None:
        """Release the files after a run, with or without an error."""
        if self._lines is not None:
            self._lines.close()


class _LocalLines:
    """Lines and events on a disk."""

    def __init__(self, workdir: Workdir, first_step: int, kept: list[bytes]):
        self._path = Path(workdir.metrics)
        write_whole(self._path, b"".join(kept))
        # Remove parts that were copied here from a bucket: if copied back, they would count as newer.
        for part in metric_parts(workdir):
            remove(part)
        self._file: IO[str] = self._path.open("a", encoding="utf-8")
        self.events = TensorBoardEvents(Path(workdir.tensorboard), first_step + 1)

    def append(self, line: str) -> None:
        with naming(self._path):
            self._file.write(line)
            self._file.flush()

    def flush(self) -> None:
        self.events.flush()

    def finish(self) -> None:
        self.flush()

    def close(self) -> None:
        with contextlib.ExitStack() as closed:
            # This retries failed writes once.
            closed.enter_context(naming(self._path))
            closed.callback(self._file.close)
            closed.callback(self.events.close)


class _BucketLines:
    """Lines and events in a bucket: buffered locally, and uploaded in parts with their own names."""

    def __init__(self, workdir: Workdir, first_step: int, hooks_run_again: bool, kept: list[bytes]):
        self._workdir = workdir
        numbers = [part_number(part.name) or 0 for part in metric_parts(workdir)]
        self._next = max(numbers, default=-1) + 1
        # This is uploaded with the first line of this start, so a start that logs nothing changes nothing.
        self._new = [continued_from(first_step if first_step else _NO_STEP, hooks_run_again)]
        if not numbers:
            # The lines of a workdir that was copied from a disk.
            self._new += kept
        self._before_first_line = len(self._new)
        self._marked = False
        self._has_older_file = True
        # Two locks, so the loop can append during an upload.
        self._appending = threading.Lock()
        self._uploading = threading.Lock()
        self._spool = tempfile.TemporaryDirectory(prefix="birdie_jax-events-")
        self.events = TensorBoardEvents(Path(self._spool.name), first_step + 1)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._upload_regularly, name="metrics", daemon=True)
        self._thread.start()

    def append(self, line: str) -> None:
        with self._appending:
            self._new.append(line.encode())

    def flush(self) -> None:
        self._upload_lines()
        self._upload_events()

    def finish(self) -> None:
        self.flush()
        with self._uploading:
            lines = [line for line in read_metric_lines(self._workdir) if parse_line(line) is not None]
            write_whole(self._workdir.metrics, b"".join(lines))

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        with contextlib.ExitStack() as closed:
            closed.callback(self._spool.cleanup)
            closed.callback(self.events.close)
            # After an error, the last lines show what led to it.
            with contextlib.suppress(OSError):
                self._upload_lines()

    def _upload_lines(self) -> None:
        with self._uploading:
            with self._appending:
                lines = list(self._new)
            if len(lines) == self._before_first_line and not self._marked:
                return
            if lines:
                write_whole(self._workdir.metrics_parts / part_name(self._next), b"".join(lines))
                self._next += 1
                self._marked = True
                with self._appending:
                    del self._new[: len(lines)]
            if self._has_older_file:
                # The file of an earlier end is older than the parts. In a copy on a disk it would count as
                # newer.
                remove(self._workdir.metrics)
                self._has_older_file = False

    def _upload_events(self) -> None:
        with self._uploading:
            self.events.flush()
            for path in Path(self._spool.name).iterdir():
                write_whole(self._workdir.tensorboard / path.name, path.read_bytes())

    def _upload_regularly(self) -> None:
        uploads = 0
        while not self._over.wait(_UPLOAD_SECONDS):
            uploads += 1
            try:
                self._upload_lines()
                if uploads % _UPLOADS_FOR_EVENTS == 0:
                    self._upload_events()
            except OSError as error:
                # The lines are kept and uploaded with the next ones. No checkpoint is saved before that.
                logging.warning("%s: metrics wait to be written: %s", self._workdir, error)


def _newest(lines: list[tuple[bytes, dict[str, Any]]]) -> dict[str, Any]:
    newest: dict[str, Any] = {}
    for _, scalars in lines:
        newest.update(scalars)
    return newest


def _lines_of(workdir: Workdir) -> list[tuple[bytes, dict[str, Any]]]:
    """Return the lines of metrics with their scalars; log the numbers of damaged ones."""
    found, damaged = [], []
    for number, line in enumerate(read_metric_lines(workdir), start=1):
        # A killed process may leave half a line at the end.
        scalars = parse_line(line) if line.endswith(b"\n") else {}
        if scalars is None:
            damaged.append(number)
        elif scalars:
            found.append((line, scalars))
    if damaged:
        shown = ", ".join(map(str, damaged[:_DAMAGED_LINES_SHOWN]))
        more = ", ..." if len(damaged) > _DAMAGED_LINES_SHOWN else ""
        logging.warning(
            "%s: %d lines are not metrics, and are ignored: line %s%s",
            workdir.metrics,
            len(damaged),
            shown,
            more,
        )
    return found
