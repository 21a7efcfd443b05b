"""linear_scan for GPUs: `python -m benchmarks.scan_gpu`, with a GPU or without.

On a GPU, the script prints microseconds of a forward pass, and of a forward with a backward pass. It also
prints the memory bandwidth of 3 or 8 accesses per element in that time, as a share of the measured
bandwidth of a copy. It compares the kernel with the chunks of its own rule, the kernel with fixed chunks,
`jax.lax.associative_scan`, and flash-linear-attention's HGRN if that is installed. Each runs in a chain
of calls. Each call takes the result of the previous call, which is partly in the cache.

Without a GPU (or with --compile), the script compiles the kernels for an H200, both passes in both
directions with resets. It prints the chunks of the rule, the assembler's report on a block, and the bytes
moved by design. You must install jax-cuda13-pjrt, jax-cuda13-plugin, nvidia-cuda-nvcc and nvidia-nvvm in
the versions of JAX.
"""

import argparse
import importlib
import json
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from benchmarks import gpu_programs
from benchmarks.gpu_programs import REPEATS
from benchmarks.scan import associative_scan
from pallas_kernels.linear_scan import gpu
from pallas_kernels.linear_scan.gpu_pass import choose_chunks, count_blocks, make_grid

TYPES = ("bfloat16", "float32")
SHAPES = ((8, 2048, 2048), (1, 16384, 2048))
CHAIN = 8


def compiled_rows(dumps):
    """Yield a row for each pass compiled for an H200; the compiler writes to the folder `dumps`."""
    gpu_programs.dump_to(dumps)
    array = gpu_programs.abstract_arrays()

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
                compiled = gpu_programs.compile_kernel(dumps, function, *arguments)
                chunks = choose_chunks(shape, "both")
                plan = make_grid(block, block, "both", streams=streams, chunks=chunks, interpret=None)
                item, elements = jnp.dtype(dtype).itemsize, batch * length * channels
                # In addition to the operands, a pass reads the flags, backward also a row of each h chunk.
                flags = 2 * batch * length // 32 * plan.channels * 4
                again = elements * item // plan.rows if streams == 3 else 0
                yield {
                    "type": dtype,
                    "shape": list(shape),
                    "pass": function.__name__,
                    "chunks": chunks,
                    "blocks": count_blocks(shape, "both", chunks),
                    **compiled.report,
                    "buffers_kib": streams * plan.slots * plan.rows * 128 * item // 1024,
                    "accesses": (streams + results) + (flags + again) / (elements * item),
                    "temporary": compiled.temporary_bytes / (elements * item),
                    "seconds": compiled.seconds,
                }


def chains(forward, backward):
    """Return two jitted chains: forward passes alone, and forward passes each with its backward pass."""

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
    """Return the chains of the kernel with a number of time chunks; None uses the rule of the kernel."""

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
    """Return the seconds of flash-linear-attention's HGRN, forward and with backward; None without fla."""
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
    """Yield (dtype, shape, name, seconds forward, with backward, bytes of an access, copy bandwidth)."""
    copy = gpu_programs.copy_bandwidth()
    for dtype in TYPES:
        for shape in SHAPES:
            keys = jax.random.split(jax.random.key(0))
            a = jax.random.uniform(keys[0], shape, jnp.float32, 0.5, 1).astype(dtype)
            x = jax.random.normal(keys[1], shape, jnp.float32).astype(dtype)
            implementations = {f"kernel, {choose_chunks(shape, 'forward')} chunks": kernel(None)}
            implementations |= {f"kernel, {chunks} chunks": kernel(chunks) for chunks in (1, 2, 4, 8)}
            implementations["associative_scan"] = differentiated(associative_scan)
            for name, (forwards, pairs) in implementations.items():
                yield (
                    dtype,
                    shape,
                    name,
                    gpu_programs.seconds_of(forwards, a, x, calls=CHAIN),
                    gpu_programs.seconds_of(pairs, a, x, calls=CHAIN),
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
    if gpu_programs.is_here() and not options.compile:
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
