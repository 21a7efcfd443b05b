"""A few train steps of a run on attached devices, compared with their plan."""

import math
import statistics
import time
from typing import NamedTuple

import jax
import numpy as np

from birdie_jax.device_check.rates import Measured
from birdie_jax.device_check.scans import packed_batch
from birdie_jax.engine.function_batches import FunctionBatches
from birdie_jax.planning.compilation import abstract_step
from birdie_jax.planning.planner import RunPlan
from birdie_jax.resolve import ResolvedRun

_GIB = 2**30
# The first steps fill caches.
_UNCOUNTED = 2
_ADVICE = "check the rows above for a low figure; --config.train.profile=20:22 traces steps of a run"


class Steps(NamedTuple):
    """The results of some train steps.

    Attributes:
        measured: the time and memory of the steps.
        positions_per_second: the positions of rows that all devices consumed per second.
    """

    measured: tuple[Measured, ...]
    positions_per_second: float


def take_steps(run: ResolvedRun, plan: RunPlan, number: int) -> Steps:
    """Take the run's own train step on random tokens, and compare it with its plan.

    Args:
        run: the run.
        plan: the plan of its step on the attached devices.
        number: the number of steps to measure.
    """
    config = run.config
    batch = packed_batch(config.batching.rows, config.batching.length)
    # More loss positions in a row than the mixture allows make the loss NaN.
    possible = np.cumsum(batch.loss_mask, axis=1) <= run.max_loss_positions
    batch = batch._replace(loss_mask=batch.loss_mask & possible)
    batches = FunctionBatches(lambda _: batch, run.mesh)
    with jax.set_mesh(run.mesh):
        step = abstract_step(run)
        state, (on_devices, _) = step.create_state(), next(batches)
        update = step.update.lower(step.abstract_state, on_devices).compile()
        seconds, loss = [], math.nan
        for _ in range(_UNCOUNTED + number):
            begin = time.perf_counter()
            state, metrics = update(state, on_devices)
            loss = float(metrics.loss)
            seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds[_UNCOUNTED:])
    expected = None if plan.bounds is None else 1e3 * plan.bounds.program_order
    measured = [Measured("compiling the step", plan.compile_seconds, None, "s", "", smaller_is_better=True)]
    if math.isfinite(loss):
        measured.append(Measured("a step", 1e3 * median, expected, "ms", _ADVICE, smaller_is_better=True))
    else:
        measured.append(Measured("a step", None, expected, "ms", f"the loss after it is {loss}"))
    in_use = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    if in_use:
        measured.append(
            Measured(
                "the most memory in use",
                in_use / _GIB,
                plan.bytes_per_device.total / _GIB,
                "GiB",
                "the figure includes the measurements before the steps",
                smaller_is_better=True,
            )
        )
    positions = config.batching.rows * config.batching.length / median
    return Steps(tuple(measured), positions)
