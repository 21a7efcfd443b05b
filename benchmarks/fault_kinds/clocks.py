"""A wall clock that jumps by hours, forwards and backwards, during a run and between its starts."""

import os
import random
import signal
import threading
import time
from pathlib import Path

from benchmarks.fault_kinds.kills import anywhere
from benchmarks.fault_kinds.layer import jump
from benchmarks.fault_kinds.play import Reference, Step

_MAX_HOURS = 100
_JUMPS = 20


def jumping(draws: random.Random, reference: Reference) -> list[Step]:
    """Kill or stop a run twice while the clock jumps, and change the times of its files in between."""
    number = draws.choice([signal.SIGKILL, signal.SIGTERM])
    steps = anywhere(draws, reference, number)
    return [
        step._replace(prepare=_jumper(draws.randrange(1 << 30)), before=_mover(draws.uniform(-1, 1)))
        for step in steps
    ]


def _jumper(seed: int):
    """Return a function that starts a thread; the thread makes the clock of its process jump repeatedly."""

    def prepare() -> None:
        draws = random.Random(seed)

        def jump_on() -> None:
            for _ in range(_JUMPS):
                jump(3600 * draws.uniform(-_MAX_HOURS, _MAX_HOURS))
                time.sleep(draws.uniform(0, 0.3))

        jump(3600 * draws.uniform(-_MAX_HOURS, _MAX_HOURS))
        threading.Thread(target=jump_on, daemon=True).start()

    return prepare


def _mover(share: float):
    """Return a function that shifts the times of all files of a folder, as a wrong clock does."""

    def move(workdir: Path) -> None:
        when = time.time() + share * 3600 * _MAX_HOURS
        for path in workdir.rglob("*"):
            os.utime(path, (when, when))

    return move
