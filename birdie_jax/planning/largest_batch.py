"""The largest batch that fits a topology, with few compilations, because memory is affine in the rows."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from birdie_jax.planning.planner import RunPlan, plan_run
from birdie_jax.resolve import ResolvedRun

_MAX_COMPILATIONS = 8


class LargestBatch(NamedTuple):
    """The largest batch that fits.

    Attributes:
        rows: the number of rows of the global batch; 0 if not even the smallest batch fits.
        verified: whether this batch compiled and fitted, and the next larger one did not fit. Otherwise the
            batch is extrapolated from two compiled ones, or, after too many compilations, the largest
            compiled one that fitted.
        compilations: the number of compilations in addition to the plan's own.
    """

    rows: int
    verified: bool
    compilations: int


def find_largest_batch(run: ResolvedRun, plan: RunPlan, *, verify: bool) -> LargestBatch:
    """Return the largest number of rows with a train step that fits; all else is as in `run`.

    Args:
        run: the run of `plan`.
        plan: the plan of the configuration's own batch.
        verify: whether to also compile the result and the next larger batch.
    """

    def needed_bytes(rows: int) -> float:
        batching = replace(run.config.batching, rows=rows)
        larger = run.with_batches_of(replace(run.config, batching=batching))
        return plan_run(larger, plan.topology).bytes_per_device.total

    step = plan.row_shards * run.config.train.accumulation_steps
    count = plan.rows // step
    found = search_largest(
        lambda count: needed_bytes(count * step),
        {count: plan.bytes_per_device.total},
        plan.bytes_per_device.available,
        verify=verify,
    )
    return found._replace(rows=found.rows * step)


def search_largest(
    needed_bytes: Callable[[int], int | float],
    known: Mapping[int, int | float],
    available: int | float,
    *,
    verify: bool,
) -> LargestBatch:
    """Return the largest count that needs at most `available` bytes, for a nearly affine need.

    Args:
        needed_bytes: the bytes that a count needs; slow to call.
        known: the bytes of at least one count.
        available: the bytes that are available.
        verify: whether to also query the result and its successor.
    """
    known = dict(known)
    compilations = 0

    def ask(count: int) -> None:
        nonlocal compilations
        known[count] = needed_bytes(count)
        compilations += 1

    if len(known) == 1:
        (first,) = known
        if first == 1 and known[first] > available:
            return LargestBatch(0, True, compilations)
        # Distant counts make the line more accurate; query a larger count only if it may fit.
        ask(2 * first if known[first] <= available else first // 2)
    guess = _extrapolate(known, available)
    while verify and compilations < _MAX_COMPILATIONS:
        max_fitting = _max_fitting(known, available)
        min_too_large = min((count for count, need in known.items() if need > available), default=None)
        if min_too_large == max_fitting + 1:
            return LargestBatch(max_fitting, True, compilations)
        guess = max(guess, max_fitting + 1)
        if min_too_large is not None:
            guess = min(guess, min_too_large - 1)
        if guess in known:
            guess = max_fitting + 1
        ask(guess)
        guess = _extrapolate(known, available)
    if verify:
        guess = _max_fitting(known, available)
    return LargestBatch(guess, False, compilations)


def _max_fitting(known: Mapping[int, int | float], available: int | float) -> int:
    return max((count for count, need in known.items() if need <= available), default=0)


def _extrapolate(known: Mapping[int, int | float], available: int | float) -> int:
    """Return the last count below `available` on the line through the two counts nearest to it."""
    nearest = sorted(known.items(), key=lambda pair: abs(pair[1] - available))[:2]
    (lower_count, lower_need), (upper_count, upper_need) = sorted(nearest)
    slope = (upper_need - lower_need) / (upper_count - lower_count)
    if slope <= 0:
        return _max_fitting(known, available)
    return max(int((available - lower_need) // slope) + lower_count, 0)
