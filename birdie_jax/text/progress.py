"""Progress of a preparation: a bar on a terminal, else a plain line every 30 seconds."""

import sys
import time
from types import TracebackType

import rich.console
import rich.filesize
import rich.progress

_SECONDS_BETWEEN_LINES = 30.0


class PreparationProgress:
    """Shows the stage, source bytes read, documents, tokens, tokens per second, and time left.

    Use it as a context manager. It writes to standard error.
    """

    def __init__(self, total_bytes: int, *, enabled: bool):
        """Set up the display for a source of `total_bytes`; it shows nothing unless `enabled`."""
        console = rich.console.Console(stderr=True)
        self._total = total_bytes
        self._lines = enabled and not console.is_terminal
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.DownloadColumn(),
            rich.progress.TextColumn("{task.fields[counts]}"),
            rich.progress.TimeRemainingColumn(),
            console=console,
            disable=not enabled or not console.is_terminal,
        )
        self._task: rich.progress.TaskID | None = None
        self._stage = ""
        self._began = self._last_line = 0.0
        self._first_bytes = self._first_tokens = 0

    def __enter__(self) -> "PreparationProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def start_stage(self, stage: str, done_bytes: int = 0, tokens: int = 0) -> None:
        """Start a stage in which `done_bytes` of the source and `tokens` tokens are already done."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(stage, total=self._total, completed=done_bytes, counts="")
        self._stage = stage
        self._began = self._last_line = time.monotonic()
        self._first_bytes, self._first_tokens = done_bytes, tokens
        self._line(f"{stage}: {rich.filesize.decimal(self._total)} of source")

    def update(self, done_bytes: int, documents: int, tokens: int = 0) -> None:
        """Show the progress of the stage; all counts start at the beginning of the source."""
        if self._task is None:
            return
        now = time.monotonic()
        elapsed = max(now - self._began, 1e-9)
        counts = f"{documents:,} documents"
        if tokens:
            rate = (tokens - self._first_tokens) / elapsed
            counts += f", {tokens:,} tokens, {rate:,.0f} tokens/s"
        self._bar.update(self._task, completed=done_bytes, counts=counts)
        if now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = now
            fresh = max(done_bytes - self._first_bytes, 1)
            left = (self._total - done_bytes) * elapsed / fresh
            share = 100 * done_bytes / max(self._total, 1)
            self._line(f"{self._stage}: {share:.1f} % of the source, {counts}, {left:,.0f} s left")

    def _line(self, text: str) -> None:
        if self._lines:
            print(text, file=sys.stderr, flush=True)
