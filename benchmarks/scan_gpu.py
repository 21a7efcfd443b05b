"""linear_scan for GPUs: `python -m benchmarks.scan_gpu`, with a GPU or without.

On a GPU: microseconds of a pass forward, and of one forward with one backward, and which share of the
measured speed of a copy 3 and 8 accesses an element in that time come to. Beside the kernel as the rule
cuts it and as a plain walk: `jax.lax.associative_scan`, `jax.lax.scan`, and flash-linear-attention's HGRN
where that is installed. Each is run in a chain, each call on the result of the one before.

Without one (or with --compile): the kernels compiled for an H200, for which jax-cuda13-pjrt,
jax-cuda13-plugin, nvidia-cuda-nvcc and nvidia-nvvm of JAX's version must be installed: both passes, both
ways with resets; how the rule cuts them, what the compiler says of a block, and the bytes moved by design.
"""

import argparse
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
    """Yield what is known of each pass compiled for an H200; the compiler writes to the folder `dumps`."""
    # Read when a program is compiled; the dump holds what the assembler says of a kernel.
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
                if "mosaic_gpu" not in compiled.as_text():
                    raise RuntimeError(f"no kernel in the program of {function.__name__}")
                chunks = choose_chunks(shape, "both")
                plan = make_grid(block, block, "both", streams=streams, chunks=chunks, interpret=None)
                item, elements = jnp.dtype(dtype).itemsize, batch * length * channels
                # Besides the operands the flags are read, and with h a row of each chunk once more.
                flags = 2 * batch * length // 32 * plan.channels * 4
                again = elements * item // plan.rows if streams == 3 else 0
                yield {
                    "type": dtype,
                    "shape": list(shape),
                    "pass": function.__name__,
                    "chunks": chunks,
                    "blocks": count_blocks(shape, "both", chunks),
                    **said_by_the_assembler(Path(dumps)),
                    "way_kib": streams * plan.slots * plan.rows * 128 * item // 1024,
                    "accesses": (streams + results) + (flags + again) / (elements * item),
                    "temporary": compiled.memory_analysis().temp_size_in_bytes / (elements * item),
                    "seconds": seconds,
                }


def said_by_the_assembler(dumps):
    """Return registers a thread, spilled bytes and KiB of shared memory of the kernel compiled last."""
    newest = max(dumps.glob("*.ptxas"), key=lambda path: path.stat().st_mtime_ns)
    said = newest.read_text()
    passes = newest.with_suffix(".mlir-passes.log").read_text()
    shared = re.search(r"dynamic_shared_memory_size %c(\d+)_i32", passes)
    return {
        "registers": int(re.search(r"Used (\d+) registers", said).group(1)),
        "spilled": sum(map(int, re.findall(r"(\d+) bytes (?:stack frame|spill)", said))),
        "shared_kib": round(int(shared.group(1)) / 1024, 1),
    }


def seconds_of(run, *arguments):
    """Return the best time of a call of a chain of `CHAIN`, calls being put in line without waiting."""
    jax.block_until_ready(run(*arguments))
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
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
    """Return the kernel's two passes with so many time chunks."""

    def forward(a, x):
        h0 = jnp.zeros((a.shape[0], a.shape[2]), jnp.float32)
        return gpu.forward(a, x, h0, resets=None, direction="forward", chunks=chunks)

    def backward(a, h):
        h0 = jnp.zeros((a.shape[0], a.shape[2]), jnp.float32)
        return gpu.backward(a, h, h0, h, resets=None, direction="forward", chunks=chunks)[:2]

    return chains(forward, backward)


def differentiated(scan):
    """Return the chains of a scan whose derivative JAX finds."""

    def pairs(a, x):
        for _ in range(CHAIN):
            h, pullback = jax.vjp(scan, a, x)
            a, x = pullback(h)
        return a, x

    return chains(scan, None)[0], jax.jit(pairs)


def hgrn_seconds(shape, dtype):
    """Return the seconds of flash-linear-attention's HGRN forward, and with backward; None without it."""
    try:
        import torch
        from fla.ops.hgrn import fused_recurrent_hgrn
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
    """Yield (type, shape, way, seconds forward, seconds with backward, bytes of an access, copy speed)."""
    size = 2**28
    ones = jnp.ones(size, jnp.float32)
    copies, _ = chains(lambda a, x: x + a, None)
    copy = 2 * 4 * size / seconds_of(copies, jnp.float32(1), ones)
    for dtype in TYPES:
        for shape in SHAPES:
            keys = jax.random.split(jax.random.key(0))
            a = jax.random.uniform(keys[0], shape, jnp.float32, 0.5, 1).astype(dtype)
            x = jax.random.normal(keys[1], shape, jnp.float32).astype(dtype)
            ways = {f"kernel, {choose_chunks(shape, 'forward')} chunks": kernel(None)}
            ways |= {f"kernel, {chunks} chunks": kernel(chunks) for chunks in (1, 2, 4, 8)}
            ways |= {
                "associative_scan": differentiated(associative_scan),
                "lax.scan": differentiated(lax_scan),
            }
            for name, (forwards, pairs) in ways.items():
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
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--compile", action="store_true", help="compile for an H200 although a GPU is here")
    parser.add_argument("--json", type=Path, help="write what the compiler says there, too")
    options = parser.parse_args()
    if Path("/dev/nvidiactl").exists() and not options.compile:
        print("| type | shape | way | forward us | of copy | with backward us | of copy |")
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
        "| type | shape | pass | chunks | blocks | registers | spilled bytes | shared KiB | KiB on the way "
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
