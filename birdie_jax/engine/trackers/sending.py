"""Send a run's logs to trackers, without waiting for them."""

import contextlib
import queue
import re
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from absl import logging

from birdie_jax.engine.trackers.registry import TRACKERS, TrackedRun, Tracker
from birdie_jax.errors import without_secrets
from birdie_jax.storage import is_remote, read_bytes, write_whole
from birdie_jax.storage.workdir import Workdir

OnScalars = Callable[[int, Mapping[str, float]], None]
"""Called with a step and the scalars that were logged for it."""
# The largest number of lines that wait for a slow tracker; further lines are dropped.
_MAX_WAITING = 10_000
# How long the end of a run waits for a tracker.
_FINISHING_SECONDS = 60.0


@contextmanager
def sending(
    names: Sequence[str], workdir: Workdir, config: Mapping[str, Any]
) -> Iterator[OnScalars | None]:
    """Send logs to trackers while entered; yield None if there are no trackers.

    Each tracker has a thread. If a tracker raises an exception, it is logged once, and the run continues
    without that tracker.

    Args:
        names: the names of the trackers.
        workdir: the folder of the run.
        config: the configuration of the run.
    """
    if not names:
        yield None
        return
    with ExitStack() as held:
        folder = str(workdir.root)
        if is_remote(workdir.root):
            folder = held.enter_context(tempfile.TemporaryDirectory(prefix="birdie_jax-trackers-"))
        run = TrackedRun(workdir.root.name, _identity(workdir), folder, config)
        senders = [_Sender(name, TRACKERS[name].make, run) for name in names]

        def send(step: int, scalars: Mapping[str, float]) -> None:
            for sender in senders:
                sender.send(step, scalars)

        succeeded = False
        try:
            yield send
            succeeded = True
        finally:
            for sender in senders:
                sender.finish(succeeded=succeeded)


class _Sender:
    """A tracker with its thread."""

    def __init__(self, name: str, make: Callable[[], Tracker], run: TrackedRun):
        self._name = name
        self._make = make
        self._run = run
        self._waiting: queue.Queue[tuple[int, Mapping[str, float]] | bool] = queue.Queue(_MAX_WAITING)
        self._dropped = False
        # A daemon thread: a tracker that hangs does not keep the process alive.
        self._thread = threading.Thread(target=self._send_all, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def send(self, step: int, scalars: Mapping[str, float]) -> None:
        """Queue scalars; drop them if too many wait already, or the tracker has failed."""
        if not self._thread.is_alive():
            return
        try:
            self._waiting.put_nowait((step, dict(scalars)))
        except queue.Full:
            if not self._dropped:
                logging.warning(
                    "tracker %s: does not keep up; it misses lines from step %d on", self._name, step
                )
            self._dropped = True

    def finish(self, *, succeeded: bool) -> None:
        """Wait until everything is sent, up to a time limit."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(succeeded)
        self._thread.join(_FINISHING_SECONDS)
        if self._thread.is_alive():
            logging.warning("tracker %s: does not end; it may miss the last lines", self._name)

    def _send_all(self) -> None:
        try:
            tracker = self._make()
            tracker.start(self._run)
            while not isinstance(line := self._waiting.get(), bool):
                tracker.log(*line)
            tracker.finish(succeeded=line)
        # The run continues whatever a library raises, even SystemExit.
        except BaseException as error:
            text = without_secrets(str(error)).strip().splitlines() or [type(error).__name__]
            logging.warning("tracker %s: %s; nothing more is sent to it", self._name, text[0][:500])


def _identity(workdir: Workdir) -> str:
    """Return the identity of a run, which its workdir stores."""
    with contextlib.suppress(FileNotFoundError):
        found = read_bytes(workdir.run_id).decode(errors="replace").strip()
        if re.fullmatch(r"[0-9a-f]{16}", found):
            return found
    made = secrets.token_hex(8)
    write_whole(workdir.run_id, f"{made}\n".encode())
    return made
