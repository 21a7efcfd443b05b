"""Measures rates of attached devices and their host, and compares them with expected figures."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec

from birdie_jax.batching import (
    DecisionSchedule,
    MixtureHistory,
    RowSettings,
    RowStreams,
)
from birdie_jax.batching.pipeline import RowStreamsIterator
from birdie_jax.config_sections import DataConfig
from birdie_jax.device_check.choice import rows_of_device
from birdie_jax.engine.coordination import Processes
from birdie_jax.errors import BirdieError
from birdie_jax.objectives import Mixture
from birdie_jax.planning.bounds import busy_seconds
from birdie_jax.planning.compilation import compile_lowered
from birdie_jax.planning.topology import Topology
from birdie_jax.pretraining.training_text import prepare_text
from birdie_jax.resolve import ResolvedRun, row_settings
from birdie_jax.storage import make_path, read_bytes, remove, write_whole
from birdie_jax.storage.workdir import Workdir
from birdie_jax.text.corpora import RowText
from hlo_analysis import read_step_costs
from pallas_kernels.linear_scan import bidirectional_scan

# At or above this share of the expected figure, the table gives no advice.
GOOD_SHARE = 0.75
_LINKS_ADVICE = "check that hosts use their fast network (NCCL_DEBUG=INFO), and that the mesh fits it"
_MIN_SECONDS = 0.3
_HOST_SECONDS = 3.0


class Measured(NamedTuple):
    """A figure of a device or its host.

    Attributes:
        what: the name of the measurement.
        found: the figure; None if measuring failed.
        expected: the expected figure; None if unknown.
        unit: the unit of both.
        advice: what to try if the figure is worse than expected, or why measuring failed.
        smaller_is_better: whether the figure is a time or an amount.
    """

    what: str
    found: float | None
    expected: float | None
    unit: str
    advice: str
    smaller_is_better: bool = False

    @property
    def share(self) -> float | None:
        """The share of the expected figure that was reached; None if either is unknown."""
        if not self.found or not self.expected:
            return None
        return self.expected / self.found if self.smaller_is_better else self.found / self.expected

    @property
    def is_low(self) -> bool:
        """Whether the figure is worse than expected, or measuring failed."""
        return self.found is None or (self.share is not None and self.share < GOOD_SHARE)


def seconds_of(function: Callable[..., Any], *arguments: Any, waits: bool = False) -> float:
    """Return the seconds per call of a compiled function, over consecutive calls.

    Args:
        function: the function.
        arguments: its arguments.
        waits: whether to wait for each call before the next.
    """
    jax.block_until_ready(function(*arguments))
    calls = 1
    while True:
        begin = time.perf_counter()
        result = None
        for _ in range(calls):
            result = function(*arguments)
            if waits:
                jax.block_until_ready(result)
        jax.block_until_ready(result)
        seconds = time.perf_counter() - begin
        if seconds >= _MIN_SECONDS:
            return seconds / calls
        calls *= 2


def products(topology: Topology) -> Measured:
    """Measure products of square matrices in bfloat16, or in float32 on a CPU."""
    on_cpu = topology.devices[0].platform == "cpu"
    size, dtype = (1024, jnp.float32) if on_cpu else (8192, jnp.bfloat16)
    with jax.default_device(jax.local_devices()[0]):
        x = jax.random.normal(jax.random.key(0), (size, size), dtype)
        seconds = seconds_of(jax.jit(jnp.matmul), x, x)
    expected = None if topology.chip is None else topology.chip.peak_flops / 1e12
    advice = "look for another program on the device, a power limit, or heat (nvidia-smi -q -d PERFORMANCE)"
    name = f"products of {size} x {size} {jnp.dtype(dtype).name}"
    return Measured(name, 2 * size**3 / seconds / 1e12, expected, "TFLOP/s", advice)


def copy(topology: Topology) -> Measured:
    """Measure reading and writing an array."""
    elements = 2**24 if topology.devices[0].platform == "cpu" else 2**28
    with jax.default_device(jax.local_devices()[0]):
        x = jnp.zeros((elements,), jnp.float32)
        seconds = seconds_of(jax.jit(lambda x: x + 1), x)
    expected = None if topology.chip is None else topology.chip.memory_bandwidth / 1e9
    advice = "look for another program on the device, or memory errors (nvidia-smi -q -d ECC)"
    name = f"a copy of {4 * elements >> 20} MiB"
    return Measured(name, 8 * elements / seconds / 1e9, expected, "GB/s", advice)


def linear_scan(
    run: ResolvedRun, implementation: str, copied: float | None, candidates: tuple[str, ...]
) -> Measured:
    """Measure the linear scan in both directions at the size of a run, in bytes that it must move.

    Args:
        run: the run.
        implementation: the implementation; "": the default of the platform.
        copied: the GB/s of a copy; the expected figure if another implementation exists.
        candidates: all implementations.
    """
    config, mesh = run.config, run.mesh.shape
    rows, length = rows_of_device(config, mesh), config.batching.length // mesh["sequence"]
    shape = (rows, length, max(2, config.model.state // mesh["tensor"]))
    dtype = jnp.dtype(config.model.scan_dtype)
    with jax.default_device(jax.local_devices()[0]):
        a, x = jnp.full(shape, 0.9, dtype), jnp.ones(shape, dtype)
        function = jax.jit(partial(bidirectional_scan, implementation=implementation or None))
        seconds = seconds_of(function, a, x)
    moved = 3 * a.size * dtype.itemsize
    name = f"the linear scan of {' x '.join(map(str, shape))} {dtype.name}"
    others = ", ".join(one for one in candidates if one != implementation)
    advice = f"set config.model.scan_implementation to another one ({others}), and report this table"
    return Measured(name, moved / seconds / 1e9, copied if others else None, "GB/s", advice)


def collectives(topology: Topology, run: ResolvedRun) -> Iterator[Measured]:
    """Measure the collectives along each axis of the mesh, in bytes that a device sends on a ring."""
    mesh, on_cpu = run.mesh, topology.devices[0].platform == "cpu"
    elements = 2**20 if on_cpu else 2**25
    locations = [topology.location(device) for device in mesh.devices.flat]
    for axis, size in mesh.shape.items():
        if size == 1:
            continue
        for kind, function in _exchanges(axis).items():
            spec = Spec(axis)
            exchange = jax.jit(
                jax.shard_map(
                    function, mesh=mesh, in_specs=spec, out_specs=Spec() if kind == "all-gather" else spec,
                    check_vma=False,
                )
            )  # fmt: skip
            ones = partial(jnp.ones, (elements * size,), jnp.bfloat16)
            x = jax.jit(ones, out_shardings=NamedSharding(mesh, spec))()
            text = compile_lowered(exchange.lower(x), topology.devices[0].platform).hlo_text
            found = read_step_costs(text, dict(mesh.shape), slices=topology.slices).collectives
            # On CPUs, simultaneous collectives deadlock on each other's threads.
            seconds = seconds_of(exchange, x, waits=on_cpu)
            sent = sum(one.sent_bytes * one.executions for one in found)
            expected = None
            if topology.chip is not None:
                busy = [busy_seconds(topology, locations, one) for one in found]
                least = sum(max(one.values(), default=0.0) for one in busy)
                expected = sent / least / 1e9 if least else None
            name = f"{kind} along {axis}, {size} devices"
            yield Measured(name, sent / seconds / 1e9, expected, "GB/s", _LINKS_ADVICE)


def _exchanges(axis: str) -> dict[str, Callable[[jax.Array], jax.Array]]:
    return {
        "all-gather": partial(jax.lax.all_gather, axis_name=axis, tiled=True),
        "reduce-scatter": partial(jax.lax.psum_scatter, axis_name=axis, tiled=True),
        "all-reduce": partial(jax.lax.psum, axis_name=axis),
    }


def store(folder: str, process: int) -> Iterator[Measured]:
    """Measure the store of checkpoints: this process writes and reads a file."""
    path = make_path(folder) / f"check_device_{process}"
    contents = np.random.default_rng(process).bytes(2**26)
    advice = "use a bucket in the region of the machine, or a dedicated disk; see docs/buckets.md"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        begin = time.perf_counter()
        write_whole(path, contents)
        written = time.perf_counter()
        is_same = read_bytes(path) == contents
        read = time.perf_counter()
        remove(path)
    except OSError as error:
        yield Measured(f"the store {folder}", None, None, "MB/s", str(error))
        return
    if not is_same:
        yield Measured(f"the store {folder}", None, None, "MB/s", "the bytes differ from those written")
        return
    size = len(contents) / 1e6
    yield Measured(f"written to {folder}", size / (written - begin), None, "MB/s", advice)
    yield Measured(f"read from {folder}", size / (read - written), None, "MB/s", advice)


def endless_rows(
    text: RowText, mixture: Mixture, settings: RowSettings
) -> tuple[RowStreamsIterator, MixtureHistory]:
    """Return endless batches of a mixture with fixed shares, and their history, which you must close."""
    history = MixtureHistory(len(mixture.arms), 1)
    history.publish(mixture.weights)
    streams = RowStreams(
        text,
        mixture.arms,
        settings,
        history,
        first_step=0,
        schedule=DecisionSchedule(every_steps=1 << 30, num_steps=1 << 30),
    )
    return iter(streams), history


def host_pipeline(run: ResolvedRun, needed: float | None) -> Measured:
    """Measure the batches that one core of the host makes, in thousands of positions per second.

    Args:
        run: the run; its mixture reads the text of the standard library.
        needed: the number of positions that this host's devices consume per second; None: unknown.
    """
    config, what = run.config, "batches from one core of the host"
    # The run's own text may take hours to prepare. All texts are equally fast.
    data = DataConfig(source="stdlib", vocab_size=4096, cache_dir=config.data.cache_dir)
    config = replace(config, data=data)
    try:
        with tempfile.TemporaryDirectory(prefix="birdie_jax_check_") as folder:
            text, _ = prepare_text(config, Workdir(folder), Processes())
    except (BirdieError, OSError) as error:
        return Measured(what, None, None, "thousand positions/s", str(error))
    settings = row_settings(config)
    # The arms of a run with corpora name those that they read; here all read the one text.
    arms = tuple(replace(arm, corpora=()) for arm in run.mixture.arms)
    batches, history = endless_rows(text.train, replace(run.mixture, arms=arms), settings)
    next(batches)
    begin, made = time.perf_counter(), 0
    while time.perf_counter() - begin < _HOST_SECONDS:
        next(batches)
        made += 1
    positions = made * settings.rows * settings.length / (time.perf_counter() - begin)
    history.close()
    cores = max(1, len(os.sched_getaffinity(0)) - 1)
    expected = None if needed is None else needed / cores / 1e3
    advice = "raise config.batching.workers, or give the host more cores"
    return Measured(what, positions / 1e3, expected, "thousand positions/s", advice)
