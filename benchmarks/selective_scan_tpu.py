"""Mamba's scan compiled for TPUs that are not there: `python -m benchmarks.selective_scan_tpu`.

For each chip, type and pass at [8, 2048, 2048] with 16 states, both directions and resets: the bytes that
the program moves, as a multiple of four accesses to each element forward (u, dt, z, y) and seven backward;
whole operands copied around the kernel; elements per cycle that its loops process, and how many the memory
can deliver. It needs `pip install libtpu` (launch/compilers.sh).
"""

from benchmarks import tpu_programs  # isort: skip

import argparse
import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp

from benchmarks.scan_tpu import CHIPS, measures
from pallas_kernels.linear_scan.tpu_chunks import LANES, TILE
from pallas_kernels.selective_scan import SelectiveScanInputs, tpu, tpu_call

SHAPE, STATES = (8, 2048, 2048), 16
ACCESSES = {"forward": 4, "backward": 7}
# Of a block: the recurrence; backward to the states that enter tiles, and back through the tiles.
LOOPS = {"forward": 1, "backward": 2}


def compile_pass(topology, dtype, pass_name):
    """Return the HLO text and the bundles of a pass."""
    array = tpu_programs.abstract(topology)
    batch, length, channels = SHAPE
    block, columns = array(SHAPE, dtype), array((batch, length, STATES), dtype)
    vector, state = array((channels,), jnp.float32), array((batch, STATES, channels), jnp.float32)
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
        resets=(array((batch, length), jnp.bool_),) * 2,
    )

    def forward(inputs):
        return tpu.forward(inputs, direction="both")

    def backward(inputs, block_h0, dy, dlast):
        return tpu.backward(inputs, block_h0, dy, dlast, direction="both")

    if pass_name == "forward":
        return tpu_programs.compile_with_bundles(forward, inputs)
    block_h0 = array(jax.eval_shape(forward, inputs)[2].shape, jnp.float32)
    return tpu_programs.compile_with_bundles(backward, inputs, block_h0, block, state)


def elements_per_cycle(bundles, dtype, pass_name):
    """Return the elements per cycle of the loops over tiles, in the slower direction."""
    found = tpu_programs.innermost_loops(bundles)
    each = LOOPS[pass_name]
    if len(found) != 2 * each or not all(multiplications for _, multiplications in found):
        raise ValueError(f"the loops of the kernel are not the ones expected: {found}")
    cycles = max(sum(cycles for cycles, _ in found[:each]), sum(cycles for cycles, _ in found[each:]))
    grid = tpu_call.make_grid(SHAPE, dtype, "both", False)
    return TILE * grid.columns * LANES / cycles


def rows(topologies):
    """Yield a row of the table as a dict for every chip, type and pass."""
    for topology, dtype, pass_name in itertools.product(topologies, ("bfloat16", "float32"), ACCESSES):
        bandwidth, clock, cores = CHIPS[topology]
        text, bundles = compile_pass(topology, dtype, pass_name)
        accesses = ACCESSES[pass_name]
        yield {
            "chip": topology.split(":")[0],
            "type": dtype,
            "pass": pass_name,
            **measures(text, SHAPE, dtype, accesses),
            "rate": elements_per_cycle(bundles, dtype, pass_name),
            "needed": bandwidth / (accesses * jnp.dtype(dtype).itemsize * clock * cores),
        }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topologies", nargs="*", default=CHIPS)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    print("| chip | type | pass | bytes/minimum | copies | elements/cycle | needed |")
    print("|---|---|---|---|---|---|---|")
    found = []
    for row in rows(arguments.topologies):
        found.append(row)
        figures = f"{row['bytes']:.3f} | {row['copies']} | {row['rate']:.1f} | {row['needed']:.0f}"
        print(f"| {row['chip']} | {row['type']} | {row['pass']} | {figures} |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
