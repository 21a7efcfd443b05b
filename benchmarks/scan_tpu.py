"""The scans compiled for absent TPUs: `python -m benchmarks.scan_tpu` (`pip install libtpu`).

The script prints, for each chip, dtype, shape and pass:

- the bytes that the program moves, as a multiple of the bytes of three (forward) or five (backward)
  accesses per element; five and nine for gated_scan;
- the number of whole operands copied around the kernel;
- the elements per cycle that its loops process, and the elements per cycle that the memory can deliver.

The script also compiles `recurrentgemma`, if installed, and `associative_scan`. It counts bytes in the
HLO text. Bundles and loops are those of the final program.
"""

from benchmarks import tpu_programs  # isort: skip

import argparse
import functools
import importlib
import importlib.util
import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp

from birdie_jax.models.birdie_ssm import BIRDIE_SSM
from birdie_jax.models.gated_ssm import GATED_SSM
from birdie_jax.models.rg_lru import RG_LRU
from pallas_kernels.gated_scan import tpu as gated_tpu
from pallas_kernels.gated_scan.cell import GatedScanInputs
from pallas_kernels.linear_scan import tpu, tpu_call, tpu_chunks

# Bytes per second of a chip's memory, cycles per second of a core, cores (Google Cloud's TPU pages; the
# clock follows from the peak matrix rate).
CHIPS = {
    "v4:2x2x1": (1.228e12, 1.05e9, 2),
    "v5e:2x2": (0.819e12, 1.5e9, 1),
    "v5p:2x2x1": (2.765e12, 1.75e9, 2),
    "v6e:2x2": (1.64e12, 1.75e9, 1),
}
SHAPES = ((8, 2048, 2048), (1, 16384, 4096))
ACCESSES = {"forward": 3, "backward": 5}
CELLS = {cell.name: cell for cell in (GATED_SSM, BIRDIE_SSM, RG_LRU)}


def elements_per_cycle(bundles: str, plan: tpu_call.TpuGrid, loops: tuple[int, int, int]) -> float:
    """Return the elements per cycle that the loops of our kernel process in its slower direction.

    Args:
        bundles: the bundles of the compiled kernel.
        plan: the chunks and groups of channels of the call.
        loops: the number of loops for a group of channels: over tiles before the recurrence (one chunk per
            iteration), over steps, and over tiles after it.
    """
    before, over_steps, after = loops
    found = tpu_programs.innermost_loops(bundles)
    each = before + over_steps + after
    groups = [found[start : start + each] for start in range(0, len(found), each)]
    in_copy = tpu_chunks.chunks_unrolled(plan.rows) * plan.chunk * plan.interleaved * tpu_call.LANES
    in_steps = tpu_chunks.CHUNKS * tpu_chunks.STEPS_UNROLLED * plan.interleaved * tpu_call.LANES
    rates = []
    for group in groups:
        steps = group[before : before + over_steps]
        if len(group) != each or not all(loop.multiplications for loop in steps):
            raise ValueError(f"the loops of the kernel are not the ones expected: {found}")
        stepping = sum(loop.cycles for loop in steps)
        copying = sum(loop.cycles for loop in group) - stepping
        rates.append(1 / (copying / in_copy + stepping / in_steps))
    return min(rates)


def compile_ours(topology, shape, dtype, pass_name, *, direction="both", with_resets=True):
    """Return the moved bytes, the number of copies, and the elements per cycle of our kernel."""
    array = tpu_programs.abstract(topology)
    batch, length, channels = shape
    block, state = array(shape, dtype), array((batch, channels), jnp.float32)
    count = 2 if direction == "both" else 1
    resets = [array((batch, length), jnp.bool_)] * count if with_resets else None

    def forward(a, x, h0, resets):
        return tpu.forward(a, x, h0, resets=resets, direction=direction)

    def backward(a, h, h0, dh, resets):
        return tpu.backward(a, h, h0, dh, resets=resets, direction=direction)

    function, arguments, loops = {
        "forward": (forward, (block, block, state, resets), (2, 2, 1)),
        "backward": (backward, (block, block, state, block, resets), (3, 2, 2)),
    }[pass_name]
    text, bundles = tpu_programs.compile_with_bundles(function, *arguments)
    plan = tpu_call.make_grid(shape, dtype, direction, False)
    return {
        **measures(text, shape, dtype, ACCESSES[pass_name]),
        "rate": elements_per_cycle(bundles, plan, loops),
    }


def gated_accesses(cell):
    """Return the accesses per element in each pass of a cell's kernel with an output gate."""
    projections = len(cell.operands) + 1
    return {"forward": projections + 1, "backward": 2 * projections + 1}


def compile_gated(cell, topology, shape, dtype, pass_name):
    """Return the moved bytes, the number of copies, and the elements per cycle of a cell's kernel."""
    array = tpu_programs.abstract(topology)
    batch, length, channels = shape
    block, state = array(shape, dtype), array((batch, channels), jnp.float32)
    resets = (array((batch, length), jnp.bool_),) * 2
    parameters = (array((channels,), jnp.float32),) * len(cell.parameters)
    inputs = GatedScanInputs((block,) * len(cell.operands), block, parameters, state, resets)

    def forward(inputs):
        return gated_tpu.forward(cell, inputs, direction="both")

    def backward(inputs, chunk_h0, dy, dlast):
        return gated_tpu.backward(cell, inputs, chunk_h0, dy, dlast, direction="both")

    chunk_h0 = jax.eval_shape(forward, inputs)[2]
    function, arguments, loops = {
        "forward": (forward, (inputs,), (1, 2, 1)),
        "backward": (backward, (inputs, array(chunk_h0.shape, jnp.float32), block, state), (1, 3, 1)),
    }[pass_name]
    text, bundles = tpu_programs.compile_with_bundles(function, *arguments)
    accesses = gated_accesses(cell)[pass_name]
    plan = gated_tpu.grid_for([inputs.gate], accesses, "both", False)
    return {**measures(text, shape, dtype, accesses), "rate": elements_per_cycle(bundles, plan, loops)}


def compile_other(scan, topology, shape, dtype, pass_name):
    """Return the moved bytes and copies of another implementation; "backward" is its gradient alone."""
    block = tpu_programs.abstract(topology)(shape, dtype)

    def gradient(a, x, dh):
        h, pull = jax.vjp(scan, a, x)
        return h, pull(dh)

    forward = jax.jit(scan).lower(block, block).compile().as_text()
    if pass_name == "forward":
        return measures(forward, shape, dtype, ACCESSES[pass_name])
    text = jax.jit(gradient).lower(block, block, block).compile().as_text()
    both = measures(text, shape, dtype, ACCESSES[pass_name])
    alone = measures(forward, shape, dtype, ACCESSES[pass_name])
    return {name: both[name] - alone[name] for name in both}


def measures(text, shape, dtype, accesses):
    """Return the bytes as a multiple of the minimum, and the number of whole operands copied."""
    array_bytes = shape[0] * shape[1] * shape[2] * jnp.dtype(dtype).itemsize
    return {
        "bytes": tpu_programs.moved_bytes(text) / (accesses * array_bytes),
        "copies": tpu_programs.full_copies(text, array_bytes),
    }


def associative_scan(a, x):
    """Scan with `jax.lax.associative_scan` in float32."""

    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    pairs = (a.astype(jnp.float32), x.astype(jnp.float32))
    return jax.lax.associative_scan(combine, pairs, axis=1)[1].astype(x.dtype)


def others():
    """Yield (name, scan) of the other implementations."""
    if importlib.util.find_spec("recurrentgemma"):
        common = importlib.import_module("recurrentgemma.common")
        scan = importlib.import_module("recurrentgemma.jax.scan")
        kernel = functools.partial(scan.linear_scan, scan_type=common.ScanType.LINEAR_PALLAS)
        yield "recurrentgemma", lambda a, x: kernel(x=x, a=a)[0]
    yield "associative_scan", associative_scan


def rows(topologies, beside, brief, cells):
    """Yield a row of the table as a dict for every chip, dtype, shape, pass and implementation."""
    for topology in topologies:
        bandwidth, clock, cores = CHIPS[topology]
        for dtype in ("bfloat16", "float32"):
            for shape, (pass_name, accesses) in itertools.product(SHAPES, ACCESSES.items()):
                head = {
                    "chip": topology.split(":")[0],
                    "type": dtype,
                    "shape": list(shape),
                    "pass": pass_name,
                }
                if topology in brief and (dtype, shape) != ("bfloat16", SHAPES[0]):
                    continue
                cycles_per_access = jnp.dtype(dtype).itemsize * clock * cores / bandwidth
                ours = compile_ours(topology, shape, dtype, pass_name)
                yield {
                    **head,
                    "implementation": "linear_scan, both ways, resets",
                    **ours,
                    "needed": 1 / (accesses * cycles_per_access),
                }
                for name in cells if shape == SHAPES[0] else ():
                    cell = CELLS[name]
                    yield {
                        **head,
                        "implementation": f"gated_scan, {name}, both ways, resets",
                        **compile_gated(cell, topology, shape, dtype, pass_name),
                        "needed": 1 / (gated_accesses(cell)[pass_name] * cycles_per_access),
                    }
                if topology not in beside or shape != SHAPES[0]:
                    continue
                for name, scan in others():
                    try:
                        other = compile_other(scan, topology, shape, dtype, pass_name)
                    except (
                        jax.errors.JaxRuntimeError,
                        NotImplementedError,
                        TypeError,
                        ValueError,
                    ) as error:
                        other = {"failure": str(error).splitlines()[0][:80]}
                    yield {**head, "implementation": name, **other}


def columns(row):
    """Format a row of the table."""
    shown = [row[name] for name in ("chip", "type", "shape", "pass", "implementation")]
    if "failure" in row:
        return [*shown, f"does not compile: {row['failure']}", "", "", ""]
    rate = [f"{row[name]:.0f}" if name in row else "" for name in ("rate", "needed")]
    return [*shown, f"{row['bytes']:.3f}", row["copies"], *rate]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topologies", nargs="*", default=CHIPS)
    parser.add_argument(
        "--beside", nargs="*", default=["v5p:2x2x1"], help="chips to compile the others for"
    )
    parser.add_argument(
        "--brief", nargs="*", default=[], help="chips with bfloat16 and the first shape alone"
    )
    parser.add_argument("--cells", nargs="*", default=["gated_ssm"], choices=CELLS, help="of gated_scan")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    print(
        "| chip | type | shape | pass | implementation | bytes/minimum | copies | elements/cycle | needed |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    found = []
    for row in rows(arguments.topologies, arguments.beside, arguments.brief, arguments.cells):
        found.append(row)
        print(f"| {' | '.join(map(str, columns(row)))} |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
