"""Mamba's scan compiled for absent TPUs: `python -m benchmarks.selective_scan_tpu`.

The script prints, for each chip, dtype and pass at [8, 2048, channels] with 16 states, in both directions
and with resets:

- the bytes that the program moves, as a multiple of four accesses per element forward (u, dt, z, y) and
  seven backward;
- the number of whole operands copied around the kernel;
- the elements per cycle that its loops process, the elements per cycle if every slot of the vector unit
  held one of their operations, and the elements per cycle that the memory can deliver.

The script requires `pip install libtpu` (launch/compilers.sh).
"""

from benchmarks import tpu_programs  # isort: skip

import argparse
import itertools
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp

from benchmarks.scan_tpu import CHIPS, measures
from pallas_kernels.linear_scan.tpu_chunks import LANES, TILE
from pallas_kernels.selective_scan import SelectiveScanInputs, tpu, tpu_call, tpu_steps
from pallas_kernels.selective_scan.tpu_steps import UNROLLED

BATCH, LENGTH, STATES = 8, 2048, 16
ACCESSES = {"forward": 4, "backward": 7}
# The loops of a span, and the number of tiles per iteration of each. "prepare" and "finish" take all
# channels. "sweep" and, in the backward pass, "pull" take four states at a time.
LOOPS = {
    "forward": {"prepare": UNROLLED, "sweep": UNROLLED, "finish": UNROLLED},
    "backward": {"prepare": UNROLLED, "sweep": UNROLLED, "pull": 1, "finish": UNROLLED},
}


def compile_pass(topology, dtype, pass_name, channels):
    """Return the HLO text and the bundles of a pass."""
    array = tpu_programs.abstract(topology)
    block, columns = array((BATCH, LENGTH, channels), dtype), array((BATCH, LENGTH, STATES), dtype)
    vector, state = array((channels,), jnp.float32), array((BATCH, STATES, channels), jnp.float32)
    inputs = SelectiveScanInputs(
        u=block,
        dt=block,
        A=array((STATES, channels), jnp.float32),
        B=columns,
        C=columns,
        D=vector,
        z=block,
        dt_bias=vector,
        h0=state,
        resets=(array((BATCH, LENGTH), jnp.bool_),) * 2,
    )

    def forward(inputs):
        return tpu.forward(inputs, direction="both")

    def backward(inputs, kept_h0, dy, dlast):
        return tpu.backward(inputs, kept_h0, dy, dlast, direction="both")

    if pass_name == "forward":
        return tpu_programs.compile_with_bundles(forward, inputs)
    kept_h0 = array(jax.eval_shape(forward, inputs)[2].shape, jnp.float32)
    return tpu_programs.compile_with_bundles(backward, inputs, kept_h0, block, state)


def rates(bundles, chip, pass_name, channels):
    """Return the elements per cycle in the slower direction, and the limit of the vector unit."""
    found = [loop for loop in tpu_programs.innermost_loops(bundles) if loop.multiplications]
    tiles = LOOPS[pass_name]
    if len(found) != 2 * len(tiles):
        raise ValueError(f"the loops of the kernel are not the ones expected: {found}")
    elements = TILE * LANES * tpu_call.make_grid((BATCH, LENGTH, channels), 0, "both", False).columns
    turns = [
        (math.ceil(STATES / tpu_steps.STATES) if name in ("sweep", "pull") else 1) / count
        for name, count in tiles.items()
    ]
    results = []
    for loops in (found[: len(tiles)], found[len(tiles) :]):
        cycles = sum(turn * loop.cycles for turn, loop in zip(turns, loops, strict=True))
        operations = sum(turn * loop.vector_operations for turn, loop in zip(turns, loops, strict=True))
        allowed = elements * tpu_programs.VECTOR_SLOTS[chip] / operations
        results.append({"rate": elements / cycles, "vector_limit": allowed})
    return min(results, key=lambda result: result["rate"])


def rows(topologies, channels):
    """Yield a row of the table as a dict for every chip, dtype and pass."""
    for topology, dtype, pass_name in itertools.product(topologies, ("bfloat16", "float32"), ACCESSES):
        bandwidth, clock, cores = CHIPS[topology]
        text, bundles = compile_pass(topology, dtype, pass_name, channels)
        accesses, chip = ACCESSES[pass_name], topology.split(":")[0]
        yield {
            "chip": chip,
            "type": dtype,
            "pass": pass_name,
            **measures(text, (BATCH, LENGTH, channels), dtype, accesses),
            **rates(bundles, chip, pass_name, channels),
            "needed": bandwidth / (accesses * jnp.dtype(dtype).itemsize * clock * cores),
        }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topologies", nargs="*", default=CHIPS)
    parser.add_argument("--channels", type=int, default=2048, help="of both directions together")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    print("| chip | type | pass | bytes/minimum | copies | elements/cycle | vector unit | needed |")
    print("|---|---|---|---|---|---|---|---|")
    found = []
    for row in rows(arguments.topologies, arguments.channels):
        found.append(row)
        figures = f"{row['bytes']:.3f} | {row['copies']}"
        figures += f" | {row['rate']:.1f} | {row['vector_limit']:.1f} | {row['needed']:.0f}"
        print(f"| {row['chip']} | {row['type']} | {row['pass']} | {figures} |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
