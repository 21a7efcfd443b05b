"""The largest batch that fits a topology, found with few compilations: memory is affine in the rows."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from birdie_jax.config import Config
from birdie_jax.planning.compilation import with_rows
from birdie_jax.planning.planner import Plan, make_plan

_MOST_COMPILATIONS = 8


class LargestBatch(NamedTuple):
    """The largest batch that fits.

    Attributes:
        rows: of the global batch; 0 = not even the smallest fits.
        verified: whether it was compiled, and the next larger one found not to fit; otherwise it is where
            the line through two compiled batches meets the memory of a device, or, after too many
            compilations, the largest of them that fitted.
        compilations: that it took beside the plan's own.
    """

    rows: int
    verified: bool
    compilations: int


def largest_batch(config: Config, plan: Plan, *, verify: bool) -> LargestBatch:
    """Return the largest number of rows whose train step fits, all else as in `config`.

    Args:
        config: that `plan` was made of.
        plan: of its own batch.
        verify: compile the batch that is found, and the next one.
    """

    def needed(rows: int) -> float:
        return make_plan(with_rows(config, rows), plan.vocab_size, plan.topology).bytes_per_device.total

    step = plan.row_shards * config.train.accumulation_steps
    count = plan.rows // step
    found = find_largest(
        lambda count: needed(count * step),
        {count: plan.bytes_per_device.total},
        plan.bytes_per_device.available,
        verify=verify,
    )
    return found._replace(rows=found.rows * step)


def find_largest(
    needed: Callable[[int], int | float],
    known: Mapping[int, int | float],
    available: int | float,
    *,
    verify: bool,
) -> LargestBatch:
    """Return the largest count whose need is at most `available`, for a need that is nearly affine.

    Args:
        needed: count -> bytes, slow.
        known: at least one count with its bytes.
        available: bytes.
        verify: whether to ask for the result and its successor too.
    """
    known = dict(known)
    asked = 0

    def ask(count: int) -> None:
        nonlocal asked
        known[count] = needed(count)
        asked += 1

    if len(known) == 1:
        (first,) = known
        if first == 1 and known[first] > available:
            return LargestBatch(0, True, asked)
        # Far apart the line is surer; upwards only where there is room.
        ask(2 * first if known[first] <= available else first // 2)
    guess = _where_line_meets(known, available)
    while verify and asked < _MOST_COMPILATIONS:
        fitting = max((count for count, bytes_ in known.items() if bytes_ <= available), default=0)
        too_many = min((count for count, bytes_ in known.items() if bytes_ > available), default=None)
        if too_many == fitting + 1:
            return LargestBatch(fitting, True, asked)
        guess = max(guess, fitting + 1)
        if too_many is not None:
            guess = min(guess, too_many - 1)
        if guess in known:
            guess = fitting + 1
        ask(guess)
        guess = _where_line_meets(known, available)
    if verify:
        guess = max((count for count, bytes_ in known.items() if bytes_ <= available), default=0)
    return LargestBatch(guess, False, asked)


def _where_line_meets(known: Mapping[int, int | float], available: int | float) -> int:
    """Return the last count below `available` on the line through the two counts nearest to it."""
    (less, low), (more, high) = sorted(sorted(known.items(), key=lambda pair: abs(pair[1] - available))[:2])
    slope = (high - low) / (more - less)
    if slope <= 0:
        return more
    return max(int((available - low) // slope) + less, 0)
