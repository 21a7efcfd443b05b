"""Mamba's scan for GPUs: `python -m benchmarks.selective_scan_gpu`, with a GPU or without.

On a GPU, the script prints microseconds of a forward pass, and of a forward with a backward pass, for the
kernel and for XLA's parallel prefix. It also prints the bandwidth of 4 or 11 accesses per element in that
time, as a share of the bandwidth of a copy.

Without a GPU (or with --compile), the script compiles the kernels for an H200 (launch/compilers.sh
installs the compilers), with a gate, resets and both directions. It prints the assembler's report on a
block, and the bytes moved by design, as accesses per element. The minimum is 4 accesses forward (u, dt,
z, y) and 7 backward (u, dt, z, dy and three cotangents). A pass also moves the kept states, the columns
of B and C, and the contribution of each block of channels to their cotangents, which it writes and reads
again. The backward pass reads u and dt a second time immediately, from the cache.
"""

import argparse
import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp

from benchmarks import gpu_programs
from pallas_kernels.selective_scan import SelectiveScanInputs, gpu, selective_scan

TYPES = ("bfloat16", "float32")
SHAPE, STATES = (8, 2048, 2048), 16
ACCESSES = {"forward": 4, "backward": 7}


def inputs_of(array, dtype):
    """Return the arguments of a pass, made by a function (shape, dtype) -> array."""
    batch, length, channels = SHAPE
    block, columns = array(SHAPE, dtype), array((batch, length, STATES), dtype)
    vector, state = array((channels,), jnp.float32), array((batch, STATES, channels), jnp.float32)
    return SelectiveScanInputs(
        u=block,
        dt=block,
        A=array((STATES, channels), jnp.float32),
        B=columns,
        C=columns,
        D=vector,
        z=block,
        dt_bias=vector,
        h0=state,
        resets=(array((batch, length), jnp.bool_),) * 2,
    )


def forward(inputs):
    return gpu.forward(inputs, direction="both")


def backward(inputs, block_h0, dy, dlast):
    return gpu.backward(inputs, block_h0, dy, dlast, direction="both")


def compiled_rows(dumps):
    """Yield a row for each pass compiled for an H200; the compiler writes to the folder `dumps`."""
    gpu_programs.dump_to(dumps)
    array = gpu_programs.abstract_arrays()
    for dtype in map(jnp.dtype, TYPES):
        inputs = inputs_of(array, dtype)
        block_h0 = array(jax.eval_shape(forward, inputs)[2].shape, jnp.float32)
        grid = gpu.grid_of(inputs, "both")
        batch, length, channels = SHAPE
        access = inputs.u.size * dtype.itemsize
        kept = block_h0.size * 4
        columns = batch * length * grid.columns * 4
        partial_sums = batch * length * 2 * STATES * 4 * (channels // 128)
        moved = {"forward": kept + columns, "backward": kept + columns + 2 * partial_sums}
        arguments = {"forward": (inputs,), "backward": (inputs, block_h0, inputs.u, inputs.h0)}
        for function in (forward, backward):
            name = function.__name__
            compiled = gpu_programs.compile_kernel(dumps, function, *arguments[name])
            yield {
                "type": dtype.name,
                "pass": name,
                "steps of a block": length // block_h0.shape[1],
                **compiled.report,
                "accesses": ACCESSES[name] + moved[name] / access,
                "least": ACCESSES[name],
                "temporary": compiled.temporary_bytes / access,
                "seconds": compiled.seconds,
            }


def measured_rows():
    """Yield a row for each dtype and implementation on the GPU of this machine."""
    copy = gpu_programs.copy_bandwidth()
    key = jax.random.key(0)
    for dtype in map(jnp.dtype, TYPES):

        def draw(shape, dtype):
            return jax.random.normal(key, shape).astype(dtype)

        inputs = inputs_of(draw, dtype)
        for implementation in ("pallas_gpu", "xla"):

            def scan(inputs, implementation=implementation):
                u, dt, A, B, C, D, z, dt_bias, h0, resets = inputs
                return selective_scan(
                    *(u, dt, -jnp.exp(A).T, B, C, D),
                    z=z,
                    dt_bias=dt_bias,
                    h0=h0,
                    resets=resets,
                    direction="both",
                    implementation=implementation,
                )

            def pair(inputs, scan=scan):
                given = inputs._replace(resets=None)
                found, pullback = jax.vjp(lambda given: scan(given._replace(resets=inputs.resets)), given)
                return pullback(found)

            seconds = [gpu_programs.seconds_of(jax.jit(function), inputs) for function in (scan, pair)]
            shares = [
                count * inputs.u.nbytes / time / copy for count, time in zip((4, 11), seconds, strict=True)
            ]
            yield {
                "type": dtype.name,
                "implementation": implementation,
                "forward us": seconds[0] * 1e6,
                "of copy": shares[0],
                "with backward us": seconds[1] * 1e6,
                "of copy with backward": shares[1],
            }


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--compile", action="store_true", help="compile for an H200 although a GPU is here")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as dumps:
        if gpu_programs.is_here() and not options.compile:
            found = measured_rows()
        else:
            jax.config.update("jax_platforms", "cpu")
            found = compiled_rows(dumps)
        for row in found:
            if not rows:
                print(f"| {' | '.join(row)} |")
                print("|---" * len(row) + "|")
            cells = (f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row.values())
            print(f"| {' | '.join(cells)} |", flush=True)
            rows.append(row)
    if options.json:
        options.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
