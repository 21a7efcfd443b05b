"""Trip counts of handwritten loops."""

import pytest

from hlo_analysis.parser import parse_hlo
from hlo_analysis.trip_counts import CallFrame, UnknownTripCountError, trip_count
from tests.hlo_analysis.handwritten import LOOPS, counter_loop


def count_of(text: str, loop: str) -> int:
    module = parse_hlo(text)
    return trip_count(module, CallFrame(module.entry), module.entry.instructions[loop])


@pytest.mark.parametrize(
    ("first", "step", "direction", "limit", "count"),
    [
        (0, 1, "LT", 7, 7),
        (0, 2, "LT", 8, 4),
        (1, 3, "LT", 8, 3),
        (0, 2, "LE", 8, 5),
        (8, -2, "GT", 0, 4),
        (8, -1, "GE", 0, 9),
        (0, 2, "NE", 8, 4),
        (9, 1, "LT", 7, 0),
    ],
)
def test_start_step_and_limit_give_the_trip_count(first, step, direction, limit, count):
    assert count_of(counter_loop(first, step, direction, limit), "loop") == count


def test_a_loop_without_a_trip_count_is_named():
    with pytest.raises(UnknownTripCountError) as error:
        count_of(LOOPS.replace("known_trip_count", "unknown"), "outer")
    assert str(error.value) == (
        "loop outer: found neither known_trip_count nor a counter in its condition outer_condition; "
        "allowed: a loop with either"
    )


def test_a_counter_that_never_reaches_its_limit_is_refused():
    with pytest.raises(UnknownTripCountError, match="loop loop: "):
        count_of(counter_loop(0, -1, "LT", 7), "loop")
