"""A few train steps of a run on attached devices, beside their plan."""

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
from birdie_jax.planning.planner import RunPlan, plan_run
from birdie_jax.planning.topology import Topology
from birdie_jax.resolve import ResolvedRun

_GIB = 2**30
# The first one fills caches.
_UNCOUNTED = 2
_ADVICE = "--config.train.profile or a trace shows where it goes; the rows above say what is slow by itself"


class Steps(NamedTuple):
    """Train steps that were taken.

    Attributes:
        plan: what was expected of them.
        measured: their time and their memory.
        positions_per_second: the positions of rows that all devices took in a second.
    """

    plan: RunPlan
    measured: tuple[Measured, ...]
    positions_per_second: float


def take_steps(run: ResolvedRun, topology: Topology, number: int) -> Steps:
    """Compile the run's own step, take it on rows without meaning, and set it beside its plan.

    Args:
        run: the run.
        topology: the attached devices.
        number: the steps that count.
    """
    plan, config = plan_run(run, topology), run.config
    # The tokens of a check are fewer than those of any run.
    batch = packed_batch(config.batching.rows, config.batching.length)
    mixture = batch._replace(arm_ids=np.zeros_like(batch.arm_ids))
    batches = FunctionBatches(lambda _: mixture, run.mesh)
    with jax.set_mesh(run.mesh):
        step = abstract_step(run)
        state, (on_devices, _) = step.create_state(), next(batches)
        begin, seconds = time.perf_counter(), []
        update = step.update.lower(step.abstract_state, on_devices).compile()
        compiling = time.perf_counter() - begin
        loss = math.nan
        for _ in range(_UNCOUNTED + number):
            begin = time.perf_counter()
            state, metrics = update(state, on_devices)
            loss = float(metrics.loss)
            seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds[_UNCOUNTED:])
    expected = None if plan.bounds is None else 1e3 * plan.bounds.scheduled
    measured = [Measured("compiling the step", compiling, None, "s", "", smaller_is_better=True)]
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
                "the figure includes what was measured before the steps",
                smaller_is_better=True,
            )
        )
    positions = config.batching.rows * config.batching.length / median
    return Steps(plan, tuple(measured), positions)
