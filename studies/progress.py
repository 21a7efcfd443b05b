"""The progress of a study: a table of its runs, and a line before each run with the remaining time."""

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import mean, median
from typing import Any, NamedTuple

from rich.table import Table

from birdie_jax.reporting.page_text import duration


class ListedRun(NamedTuple):
    """A run of a study.

    Attributes:
        name: the name.
        title: a description; empty if the name is enough.
        seconds: the duration; None for an unfinished run.
        left: the number of commands that it still needs, as far as they are known.
    """

    name: str
    title: str
    seconds: float | None
    left: int


def seconds_of(result: Mapping[str, Any]) -> float:
    """Return the duration of a finished run in seconds; NaN if its result has none."""
    seconds = result.get("circumstances", {}).get("seconds", {})
    return float(sum(seconds.values())) if seconds else float("nan")


def expected_seconds(runs: Sequence[ListedRun]) -> dict[str, float]:
    """Return the expected duration of each unfinished run by name; empty if no run has a duration.

    It is the median of the finished runs with the same description, or of all if there are none.
    """
    took: dict[str, list[float]] = {}
    for run in runs:
        if run.seconds is not None and math.isfinite(run.seconds):
            took.setdefault(run.title, []).append(run.seconds)
    every = [seconds for of_title in took.values() for seconds in of_title]
    if not every:
        return {}
    return {run.name: median(took.get(run.title, every)) for run in runs if run.seconds is None}


def runs_table(runs: Sequence[ListedRun], expected: Mapping[str, float]) -> Table:
    """Return a table of finished and unfinished runs, with the expected time of the unfinished ones."""
    table = Table(box=None, pad_edge=False)
    for title in ("run", "state", "time", "what"):
        table.add_column(title, justify="right" if title == "time" else "left")
    for run in runs:
        if run.seconds is not None:
            table.add_row(run.name, "finished", duration(run.seconds), run.title)
            continue
        state = f"{run.left} {'command' if run.left == 1 else 'commands'} left"
        cost = f"about {duration(expected[run.name])}" if run.name in expected else ""
        table.add_row(run.name, state, cost, run.title)
    return table


class Progress:
    """Counts the finished runs of a study and estimates when the last one ends."""

    def __init__(self, total: int, took: Sequence[float], now: Callable[[], datetime.datetime]):
        """Start with the finished runs.

        Args:
            total: the number of all runs.
            took: the duration of each finished run in seconds.
            now: returns the current time.
        """
        self._total, self._took, self._now = total, list(took), now

    def line(self, name: str, title: str) -> str:
        """Return a line with the current run, the runs done and left, and the estimated end of all."""
        done, left = len(self._took), self._total - len(self._took)
        what = f"{name} runs{f' ({title})' if title else ''}: {done} of {self._total} done, {left} left"
        known = [seconds for seconds in self._took if math.isfinite(seconds)]
        if not known:
            return what
        each = mean(known)
        end = self._now() + datetime.timedelta(seconds=each * left)
        return f"{what}, {duration(each)} each; all by {end:%Y-%m-%d %H:%M}"

    def finished(self, seconds: float) -> None:
        """Add a finished run and its duration."""
        self._took.append(seconds)
