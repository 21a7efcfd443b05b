"""The time use of a run over all its starts: goodput, and the other time by category."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax

from birdie_jax.storage.metric_lines import GOODPUT, TIME_PREFIX, WALL_CLOCK

# The time to compile with XLA, or to load a compiled program.
_COMPILED = "/jax/core/compile/backend_compile_duration"
STEPPING = "stepping"
CATEGORIES = (
    *(STEPPING, "compiling", "waiting_for_data", "hooks", "checkpoints"),
    *("starting", "lost_steps", "between_starts"),
)
"""The categories of time. `starting` lasts until the first step of a start. `lost_steps` are steps that a
resumed run repeats after a kill. `between_starts` is time in which nothing runs. Compilation always counts
as `compiling`."""
TIME_SCALARS = tuple(f"{TIME_PREFIX}{name}" for name in CATEGORIES)
"""The names of the seconds of each category in metrics."""


class TimeUse:
    """Adds up the seconds of each category.

    Every line of metrics has the sums so far, so a resumed run continues the sums of its step. Lines that a
    killed run logged after that step show how long the lost steps took; steps after its last line count as
    between starts.
    """

    def __init__(self, began: float | None = None):
        """Begin to count.

        Args:
            began: the beginning of this start, from `time.monotonic`; None: now.
        """
        self._began = time.monotonic() if began is None else began
        self._spent = dict.fromkeys(CATEGORIES, 0.0)
        self._before = dict.fromkeys(CATEGORIES, 0.0)

    def __enter__(self) -> "TimeUse":
        jax.monitoring.register_event_duration_secs_listener(self._compiled)
        return self

    def __exit__(self, *error: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._compiled)

    def resume(self, kept: Mapping[str, Any], last: Mapping[str, Any]) -> None:
        """Continue the sums of earlier starts.

        Args:
            kept: the newest scalars up to the step where the run resumes.
            last: the newest scalars of any earlier start.
        """
        self._before = {name: kept.get(TIME_PREFIX + name, 0.0) for name in CATEGORIES}
        logged = sum(last.get(TIME_PREFIX + name, 0.0) for name in CATEGORIES)
        self._before["lost_steps"] += max(logged - sum(self._before.values()), 0.0)
        if WALL_CLOCK in last:
            began = time.time() - (time.monotonic() - self._began)
            # Clocks of machines differ and can jump.
            self._before["between_starts"] += max(began - last[WALL_CLOCK], 0.0)

    def first_step_begins(self) -> None:
        """End the category `starting`."""
        self._spent["starting"] = time.monotonic() - self._began - sum(self._spent.values())

    @contextmanager
    def spent_on(self, category: str) -> Iterator[None]:
        """Count the time while entered, except compilation, in a category; name it in a trace."""
        begin, compiling = time.monotonic(), self._spent["compiling"]
        try:
            with jax.profiler.TraceAnnotation(category):
                yield
        finally:
            self._spent[category] += time.monotonic() - begin - (self._spent["compiling"] - compiling)

    def scalars(self) -> dict[str, float]:
        """Return the seconds of each category over all starts, and the share of `stepping` in their sum."""
        now = time.monotonic() - self._began
        spent = self._spent | {STEPPING: now - sum(self._spent.values())}
        sums = {name: self._before[name] + spent[name] for name in CATEGORIES}
        return {
            GOODPUT: sums[STEPPING] / max(sum(sums.values()), 1e-9),
            WALL_CLOCK: time.time(),
            **{TIME_PREFIX + name: seconds for name, seconds in sums.items()},
        }

    def _compiled(self, event: str, duration_secs: float, **_: object) -> None:
        if event == _COMPILED:
            self._spent["compiling"] += duration_secs
