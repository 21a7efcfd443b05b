"""TensorBoard event files, written by the thread that logs: a full disk is an error, and never a queue."""

import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboardX.summary import scalar

_FLUSH_SECONDS = 30.0


class TensorBoardEvents:
    """One event file of a folder, begun anew at a step."""

    def __init__(self, folder: Path, first_step: int):
        """Open a new file; TensorBoard hides what older ones say of `first_step` and later steps.

        Raises:
            OSError: the folder or the file cannot be made.
        """
        folder.mkdir(parents=True, exist_ok=True)
        # Two runs that start within a second must not have one file.
        self._writer = EventsWriter(str(folder / "events"), f".{secrets.token_hex(4)}")
        self._writer.write_event(Event(step=first_step, file_version="brain.Event:2"))
        self._writer.write_event(Event(step=first_step, session_log=SessionLog(status=SessionLog.START)))
        self._flushed = time.monotonic()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Append finite scalars of a step.

        Raises:
            OSError: they cannot be written.
        """
        for name, value in scalars.items():
            self._writer.write_event(Event(step=step, wall_time=time.time(), summary=scalar(name, value)))
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Bring to the disk what was written.

        Raises:
            OSError: the disk refuses.
        """
        self._writer.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()
