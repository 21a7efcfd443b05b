"""The progress of a study: a table of its runs, and a line before each with the remaining work and time."""

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

from rich.table import Table

from birdie_jax.reporting.page_text import duration


class ListedRun(NamedTuple):
    """A run of a study.

    Attributes:
        name: its name.
        title: what it is, in words; empty where its name says it.
        seconds: what it took; None before it is finished.
        left: the number of commands that it still needs, as far as they are known.
    """

    name: str
    title: str
    seconds: float | None
    left: int


def seconds_of(result: Mapping[str, Any]) -> float:
    """Return what a finished run took; NaN where its result does not say."""
    seconds = result.get("circumstances", {}).get("seconds", {})
    return float(sum(seconds.values())) if seconds else float("nan")


def runs_table(runs: Sequence[ListedRun]) -> Table:
    """Return a table of runs, finished or not."""
    table = Table(box=None, pad_edge=False)
    for title in ("run", "state", "took", "what"):
        table.add_column(title, justify="right" if title == "took" else "left")
    for run in runs:
        finished = run.seconds is not None
        state = "finished" if finished else f"{run.left} {'command' if run.left == 1 else 'commands'} left"
        table.add_row(run.name, state, duration(run.seconds) if run.seconds is not None else "", run.title)
    return table


class Progress:
    """Says, before each run, which one runs, how many are done and left, and when all are."""

    def __init__(self, total: int, took: Sequence[float], now: Callable[[], datetime.datetime]):
        """Begin with the runs that are finished.

        Args:
            total: the number of all runs.
            took: the seconds of each finished run.
            now: returns the time.
        """
        self._total, self._took, self._now = total, list(took), now

    def line(self, name: str, title: str) -> str:
        """Return what runs, what is done and left, and when all is done if runs take what they took."""
        done, left = len(self._took), self._total - len(self._took)
        what = f"{name} runs{f' ({title})' if title else ''}: {done} of {self._total} done, {left} left"
        known = [seconds for seconds in self._took if math.isfinite(seconds)]
        if not known:
            return what
        each = mean(known)
        end = self._now() + datetime.timedelta(seconds=each * left)
        return f"{what}, {duration(each)} each; all by {end:%Y-%m-%d %H:%M}"

    def finished(self, seconds: float) -> None:
        """Note that another run is done."""
        self._took.append(seconds)
