"""linear_scan for GPUs: `python -m benchmarks.scan_gpu`, with a GPU or without.

On a GPU: microseconds of a forward pass, and of a forward with a backward pass, and the memory bandwidth of
3 and 8 accesses to each element in that time, as a share of the measured bandwidth of a copy. Beside the
kernel with the chunks of its own rule and with fixed ones: `jax.lax.associative_scan`, `jax.lax.scan`, and
flash-linear-attention's HGRN where that is installed. Each runs in a chain, each call on the result of the
one before.

Without a GPU (or with --compile): the kernels compiled for an H200, for which jax-cuda13-pjrt,
jax-cuda13-plugin, nvidia-cuda-nvcc and nvidia-nvvm of JAX's version must be installed: both passes, in both
directions with resets; the chunks of the rule, what the assembler reports of a block, and the bytes moved
by design.
"""

import argparse
import importlib
import json
import os
import re
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from benchmarks.scan import associative_scan, lax_scan
from birdie_jax.planning.topology import H200_TARGET
from pallas_kernels.linear_scan import gpu
from pallas_kernels.linear_scan.gpu_grid import choose_chunks, count_blocks, make_grid

TYPES = ("bfloat16", "float32")
SHAPES = ((8, 2048, 2048), (1, 16384, 2048))
CHAIN = 8
REPEATS = 20


def compiled_rows(dumps):
    """Yield a row for each pass compiled for an H200; the compiler writes to the folder `dumps`."""
    # Read when a program is compiled; the dump has the report of the assembler on a kernel.
    os.environ |= {"MOSAIC_GPU_DUMP_TO": dumps, "MOSAIC_GPU_DUMP_PTXAS": "1"}
    topology = topologies.get_topology_desc("1x1x1", "cuda", target_config=H200_TARGET, topology="1x1x1")
    sharding = SingleDeviceSharding(topology.devices[0])

    def array(shape, dtype):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def forward(a, x, h0, reset):
        return gpu.forward(a, x, h0, resets=(reset, reset), direction="both")

    def backward(a, h, h0, dh, reset):
        return gpu.backward(a, h, h0, dh, resets=(reset, reset), direction="both")

    for dtype in TYPES:
        for shape in SHAPES:
            batch, length, channels = shape
            block, state = array(shape, jnp.dtype(dtype)), array((batch, channels), jnp.float32)
            reset = array((batch, length), jnp.bool_)
            for function, arguments, streams, results in (
                (forward, (block, block, state, reset), 2, 1),
                (backward, (block, block, state, block, reset), 3, 2),
            ):
                begin = time.monotonic()
                compiled = jax.jit(function).lower(*arguments).compile()
                seconds = time.monotonic() - begin
                if "mosaic_gpu" not in (compiled.as_text() or ""):
                    raise RuntimeError(f"no kernel in the program of {function.__name__}")
                memory = compiled.memory_analysis()
                if memory is None:
                    raise RuntimeError("the GPU compiler does not state the memory of the program")
                chunks = choose_chunks(shape, "both")
                plan = make_grid(block, block, "both", streams=streams, chunks=chunks, interpret=None)
                item, elements = jnp.dtype(dtype).itemsize, batch * length * channels
                # Beside the operands the flags are read, and backward a row of each chunk of h again.
                flags = 2 * batch * length // 32 * plan.channels * 4
                again = elements * item // plan.rows if streams == 3 else 0
                yield {
                    "type": dtype,
                    "shape": list(shape),
                    "pass": function.__name__,
                    "chunks": chunks,
                    "blocks": count_blocks(shape, "both", chunks),
                    **assembler_report(Path(dumps)),
                    "buffers_kib": streams * plan.slots * plan.rows * 128 * item // 1024,
                    "accesses": (streams + results) + (flags + again) / (elements * item),
                    "temporary": memory.temp_size_in_bytes / (elements * item),
                    "seconds": seconds,
                }


def assembler_report(dumps: Path) -> dict[str, float]:
    """Return registers per thread, spilled bytes and KiB of shared memory of the kernel compiled last.

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


def seconds_of(run, *arguments):
    """Return the best seconds of one call in a chain of `CHAIN`; chains are dispatched without waiting."""
    jax.block_until_ready(run(*arguments))
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        result = None
        for _ in range(REPEATS):
            result = run(*arguments)
        jax.block_until_ready(result)
        best = min(best, (time.perf_counter() - begin) / REPEATS / CHAIN)
    return best


def chains(forward, backward):
    """Return jitted chains of passes forward, and of passes forward each with its backward."""

    def forwards(a, x):
        for _ in range(CHAIN):
            x = forward(a, x)
        return x

    def pairs(a, x):
        for _ in range(CHAIN):
            a, x = backward(a, forward(a, x))
        return a, x

    return jax.jit(forwards), jax.jit(pairs)


def kernel(chunks):
    """Return the chains of the kernel with a number of time chunks; None = the number of its own rule."""

    def forward(a, x):
        h0 = jnp.zeros((a.shape[0], a.shape[2]), jnp.float32)
        return gpu.forward(a, x, h0, resets=None, direction="forward", chunks=chunks)

    def backward(a, h):
        h0 = jnp.zeros((a.shape[0], a.shape[2]), jnp.float32)
        return gpu.backward(a, h, h0, h, resets=None, direction="forward", chunks=chunks)[:2]

    return chains(forward, backward)


def differentiated(scan):
    """Return the chains of a scan that JAX differentiates."""

    def pairs(a, x):
        for _ in range(CHAIN):
            h, pullback = jax.vjp(scan, a, x)
            a, x = pullback(h)
        return a, x

    return chains(scan, None)[0], jax.jit(pairs)


def hgrn_seconds(shape, dtype):
    """Return the seconds of flash-linear-attention's HGRN forward, and with backward; None without it."""
    try:
        torch = importlib.import_module("torch")
        fused_recurrent_hgrn = importlib.import_module("fla.ops.hgrn").fused_recurrent_hgrn
    except ImportError:
        return None
    options = {"device": "cuda", "dtype": getattr(torch, dtype)}
    x = torch.randn(shape, **options, requires_grad=True)
    log_decay = torch.nn.functional.logsigmoid(torch.randn(shape, **options)).requires_grad_()

    def pair():
        h, _ = fused_recurrent_hgrn(x, log_decay)
        torch.autograd.grad(h, (x, log_decay), h)

    def forward():
        with torch.no_grad():
            fused_recurrent_hgrn(x, log_decay)

    found = []
    for run in (forward, pair):
        run()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(REPEATS):
            run()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - begin) / REPEATS)
    return found


def measured_rows():
    """Yield (type, shape, name, seconds forward, with backward, bytes of an access, copy bandwidth)."""
    size = 2**28
    ones = jnp.ones(size, jnp.float32)
    copies, _ = chains(lambda a, x: x + a, None)
    copy = 2 * 4 * size / seconds_of(copies, jnp.float32(1), ones)
    for dtype in TYPES:
        for shape in SHAPES:
            keys = jax.random.split(jax.random.key(0))
            a = jax.random.uniform(keys[0], shape, jnp.float32, 0.5, 1).astype(dtype)
            x = jax.random.normal(keys[1], shape, jnp.float32).astype(dtype)
            implementations = {f"kernel, {choose_chunks(shape, 'forward')} chunks": kernel(None)}
            implementations |= {f"kernel, {chunks} chunks": kernel(chunks) for chunks in (1, 2, 4, 8)}
            implementations |= {
                "associative_scan": differentiated(associative_scan),
                "lax.scan": differentiated(lax_scan),
            }
            for name, (forwards, pairs) in implementations.items():
                yield (
                    dtype,
                    shape,
                    name,
                    seconds_of(forwards, a, x),
                    seconds_of(pairs, a, x),
                    a.nbytes,
                    copy,
                )
            found = hgrn_seconds(shape, dtype)
            if found is not None:
                yield dtype, shape, "HGRN", *found, a.nbytes, copy


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--compile", action="store_true", help="compile for an H200 although a GPU is here")
    parser.add_argument("--json", type=Path, help="also write the rows of --compile to this file")
    options = parser.parse_args()
    if Path("/dev/nvidiactl").exists() and not options.compile:
        print("| type | shape | implementation | forward us | of copy | with backward us | of copy |")
        print("|---|---|---|---|---|---|---|")
        for dtype, shape, name, forward, pair, size, copy in measured_rows():
            shares = (3 * size / forward / copy, 8 * size / pair / copy)
            print(
                f"| {dtype} | {list(shape)} | {name} | {forward * 1e6:.0f} | {shares[0]:.0%} | "
                f"{pair * 1e6:.0f} | {shares[1]:.0%} |",
                flush=True,
            )
        return
    jax.config.update("jax_platforms", "cpu")
    print(
        "| type | shape | pass | chunks | blocks | registers | spilled bytes | shared KiB | KiB of buffers "
        "| accesses by design | temporary accesses | compile s |"
    )
    print("|---" * 12 + "|")
    rows = []
    with tempfile.TemporaryDirectory() as dumps:
        for row in compiled_rows(dumps):
            rows.append(row)
            cells = (f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row.values())
            print("| " + " | ".join(cells) + " |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
