"""Programs compiled for an absent H200, the assembler's report on them, and times on a GPU.

You must install the compilers (launch/compilers.sh): jax-cuda13-pjrt, jax-cuda13-plugin, nvidia-cuda-nvcc
and nvidia-nvvm in the versions of JAX.
"""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from birdie_jax.planning.topology import gpu_target

REPEATS = 20
_MAX_SECONDS = 0.5


class CompiledKernel(NamedTuple):
    """The costs of a program with one Mosaic kernel.

    Attributes:
        report: registers per thread, spilled bytes, and KiB of shared memory of the kernel.
        temporary_bytes: the memory that the program needs in addition to its arguments and results.
        seconds: the duration of compilation, in seconds.
    """

    report: dict[str, float]
    temporary_bytes: int
    seconds: float


def abstract_arrays() -> Callable[..., jax.ShapeDtypeStruct]:
    """Return the function (shape, dtype) -> abstract array on an absent H200."""
    topology = topologies.get_topology_desc(
        "1x1x1", "cuda", target_config=gpu_target("h200"), topology="1x1x1"
    )
    sharding = SingleDeviceSharding(topology.devices[0])
    return lambda shape, dtype: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def dump_to(folder: str) -> None:
    """Make the compiler write its reports to `folder`. Call this before the first compilation."""
    os.environ |= {"MOSAIC_GPU_DUMP_TO": folder, "MOSAIC_GPU_DUMP_PTXAS": "1"}


def compile_kernel(dumps: str, function: Callable[..., Any], *arguments: Any) -> CompiledKernel:
    """Compile a function with a kernel for the device of its arguments.

    Args:
        dumps: the folder that `dump_to` received.
        function: the function.
        arguments: its arguments, made by `abstract_arrays`.

    Raises:
        RuntimeError: the program has no kernel, or the compiler does not report its memory.
        ValueError: the report is not in the format of this version of ptxas.
    """
    begin = time.monotonic()
    compiled = jax.jit(function).lower(*arguments).compile()
    seconds = time.monotonic() - begin
    if "mosaic_gpu" not in (compiled.as_text() or ""):
        raise RuntimeError(f"no kernel in the program of {function.__name__}")
    memory = compiled.memory_analysis()
    if memory is None:
        raise RuntimeError("the GPU compiler does not state the memory of the program")
    return CompiledKernel(assembler_report(Path(dumps)), memory.temp_size_in_bytes, seconds)


def assembler_report(dumps: Path) -> dict[str, float]:
    """Return registers per thread, spilled bytes and KiB of shared memory of the last compiled kernel.

    Raises:
        ValueError: the report is not in the format of this version of ptxas.
    """
    newest = max(dumps.glob("*.ptxas"), key=lambda path: path.stat().st_mtime_ns)
    report = newest.read_text()
    passes = newest.with_suffix(".mlir-passes.log").read_text()
    shared = re.search(r"dynamic_shared_memory_size %c(\d+)_i32", passes)
    registers = re.search(r"Used (\d+) registers", report)
    if shared is None or registers is None:
        raise ValueError(f"{newest}: found neither registers nor shared memory; expected a report of ptxas")
    return {
        "registers": int(registers.group(1)),
        "spilled": sum(map(int, re.findall(r"(\d+) bytes (?:stack frame|spill)", report))),
        "shared_kib": round(int(shared.group(1)) / 1024, 1),
    }


def seconds_of(run: Callable[..., Any], *arguments: Any, calls: int = 1) -> float:
    """Return the best seconds per call of a `run` that makes `calls` calls, dispatched without waiting."""

    def timed(repeats):
        begin = time.perf_counter()
        result = None
        for _ in range(repeats):
            result = run(*arguments)
        jax.block_until_ready(result)
        return (time.perf_counter() - begin) / repeats

    jax.block_until_ready(run(*arguments))
    repeats = max(1, min(REPEATS, int(_MAX_SECONDS / timed(1))))
    return min(timed(repeats) for _ in range(3)) / calls


def copy_bandwidth() -> float:
    """Return the bandwidth of a copy of a GiB: bytes read and written per second."""
    ones = jnp.ones(2**28, jnp.float32)
    return 2 * ones.nbytes / seconds_of(jax.jit(lambda x: x + 1), ones)


def is_here() -> bool:
    """Return whether this machine has an NVIDIA GPU."""
    return Path("/dev/nvidiactl").exists()
