"""Each second of a run counts in one category, also over a kill."""

import time

import jax
import pytest

from birdie_jax.engine import time_use
from birdie_jax.engine.time_use import CATEGORIES, TIME_SCALARS, TimeUse


class Clock:
    """A clock that tests set; `time.time` runs 1,000 seconds ahead of `time.monotonic`."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def time(self):
        return self.now + 1000.0


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time_use, "time", clock)
    return clock


def compile_for(use, seconds):
    del use
    jax.monitoring.record_event_duration_secs("/jax/core/compile/backend_compile_duration", float(seconds))


def run(clock, use):
    """Take 8 s to start, 2 of them to compile, then 40 s of steps with 30 s of other things among them."""
    with use:
        clock.now += 8
        compile_for(use, 2)
        use.first_step_begins()
        clock.now += 10
        for category, seconds, compiling in (
            ("hooks", 20, 5),
            ("waiting_for_data", 3, 0),
            ("checkpoints", 7, 0),
        ):
            with use.spent_on(category):
                clock.now += seconds
                compile_for(use, compiling)
        clock.now += 30
        return use.scalars()


def test_each_second_is_counted_once(clock):
    found = run(clock, TimeUse())
    assert found == {
        "time/stepping": 40,
        "time/compiling": 7,
        "time/waiting_for_data": 3,
        "time/hooks": 15,
        "time/checkpoints": 7,
        "time/starting": 6,
        "time/lost_steps": 0,
        "time/between_starts": 0,
        "goodput": 40 / 78,
        "unix_time": 1178,
    }
    assert set(found) == {*TIME_SCALARS, "goodput", "unix_time"}


def test_a_start_after_a_kill_continues_the_sums(clock):
    """10 s of steps were done twice, and nothing ran for 50 s."""
    first = TimeUse()
    kept = run(clock, first)
    clock.now += 10
    last = first.scalars()
    clock.now += 50
    second = TimeUse()
    clock.now += 1
    second.resume(kept, last)
    found = run(clock, second)
    assert found["time/lost_steps"] == pytest.approx(10)
    assert found["time/between_starts"] == pytest.approx(50)
    assert found["time/stepping"] == pytest.approx(80)
    assert found["time/starting"] == pytest.approx(13)
    assert sum(found[f"time/{name}"] for name in CATEGORIES) == pytest.approx(78 + 10 + 50 + 79)


def test_the_first_lines_of_an_earlier_version_and_a_clock_that_jumps_count_nothing(clock):
    use = TimeUse()
    use.resume({"loss": 1.0}, {"loss": 1.0, "unix_time": clock.time() + 3600})
    assert run(clock, use)["time/between_starts"] == 0


def test_compilation_is_noticed():
    with TimeUse() as use:
        jax.jit(lambda x: x * 3.25 + time.monotonic())(1.0)
        compiling = use.scalars()["time/compiling"]
    assert compiling > 0
    jax.jit(lambda x: x * 4.25 + time.monotonic())(1.0)
    assert use.scalars()["time/compiling"] == compiling
