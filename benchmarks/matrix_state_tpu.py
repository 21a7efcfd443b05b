"""gated_delta_rule and ssd compiled for absent TPUs: `python -m benchmarks.matrix_state_tpu`.

The script prints, for each chip, shape and pass, in bfloat16, in both directions and with resets:

- the bytes that the program moves, as a multiple of q, k, v and the output once in the forward pass, and of
  these with the cotangent of the output and three cotangents in the backward pass;
- the same of the kernel alone, without the instructions around it;
- the number of whole operands copied around the kernel;
- the cycles of a token and head in the slower direction;
- the share of these cycles in which the matrix units could compute the products. A product of the inverse
  takes three passes and counts as three.

The script requires `pip install libtpu` (launch/compilers.sh).
"""

from benchmarks import tpu_programs  # isort: skip

import argparse
import itertools
import json
from pathlib import Path

import jax

from benchmarks.scan_tpu import CHIPS
from pallas_kernels.matrix_state import tpu, tpu_grid
from pallas_kernels.matrix_state.sequences import HeadSequences, ValueWeights

# (batch, length, heads of the keys, heads, d_k, d_v), and whether the operation has beta.
SHAPES = {
    "gated_delta_rule": ((2, 2048, 4, 4, 128, 256), True),
    "gated_delta_rule, shared keys": ((2, 2048, 16, 32, 128, 128), True),
    "gated_delta_rule, 1.4B": ((8, 2048, 6, 6, 256, 512), True),
    "ssd, 1.4B": ((8, 2048, 1, 64, 128, 64), False),
}
# Multiply-adds per cycle of all matrix units of a core: four units of 128 x 128; on v6e two of 256 x 256.
UNITS = {"v4": 4 * 128**2, "v5e": 4 * 128**2, "v5p": 4 * 128**2, "v6e": 2 * 256**2}


def compile_pass(topology, name, pass_name):
    """Return the HLO text, the bundles, the minimum number of bytes of a pass, and the grid."""
    array = tpu_programs.abstract(topology)
    (batch, length, groups, heads, d_k, d_v), has_beta = SHAPES[name]
    # A model's maps write features of all heads side by side.
    widths = groups * d_k, heads * d_v
    keys, values = (array((batch, length, width), "bfloat16") for width in widths)
    numbers, state = array((batch, length, heads), "float32"), array((batch, heads, d_k, d_v), "float32")
    resets = (array((batch, length), "bool"),) * 2
    sequences = HeadSequences(keys, keys, values, numbers, numbers if has_beta else None, resets)
    weights = None if has_beta else ValueWeights(numbers, array((heads,), "float32"))
    options = {"direction": "both", "chunk": tpu_grid.CHUNK}
    of_keys, of_values = 2 * keys.size * 2, values.size * 2

    def by_head(sequences):
        q, k = (array.reshape(batch, length, groups, -1) for array in sequences[:2])
        return sequences._replace(q=q, k=k, v=sequences.v.reshape(batch, length, heads, -1))

    def forward(sequences, weights, state):
        o, *states = tpu.forward(by_head(sequences), weights, state, **options)
        return o.reshape(batch, length, -1), *states

    def backward(sequences, weights, states, do, dlast):
        do = do.reshape(batch, length, heads, -1)
        found, *others = tpu.backward(by_head(sequences), weights, states, (do, dlast), **options)
        dq, dk, dv = (array.reshape(batch, length, -1) for array in found[:3])
        return dq, dk, dv, found[3:], others

    grid = tpu_grid.make_grid(jax.eval_shape(by_head, sequences), "both", tpu_grid.CHUNK)
    if pass_name == "forward":
        compiled = tpu_programs.compile_with_bundles(forward, sequences, weights, state)
        return *compiled, of_keys + 2 * of_values, grid
    of_blocks = jax.eval_shape(forward, sequences, weights, state)[2]
    states = array(of_blocks.shape, of_blocks.dtype)
    compiled = tpu_programs.compile_with_bundles(backward, sequences, weights, states, values, state)
    return *compiled, 2 * of_keys + 3 * of_values, grid


def rows(topologies, names):
    """Yield a row of the table as a dict for every chip, shape and pass."""
    for topology, name, pass_name in itertools.product(topologies, names, ("forward", "backward")):
        text, bundles, least, grid = compile_pass(topology, name, pass_name)
        (batch, length, _, heads, d_k, d_v), has_beta = SHAPES[name]
        loops = [loop.cycles for loop in tpu_programs.innermost_loops(bundles)]
        # The loops of one direction, then the loops of the other, each for all heads of a grid step.
        half = len(loops) // 2
        cycles = max(sum(loops[:half]), sum(loops[half:])) / grid.side / grid.chunk
        flops = tpu.token_flops(grid, has_beta=has_beta, backward=pass_name == "backward", passes=3)
        chip = topology.split(":")[0]
        yield {
            "chip": chip,
            "operation": name,
            "pass": pass_name,
            "bytes": tpu_programs.moved_bytes(text) / least,
            "kernel": tpu_programs.kernel_bytes(text) / least,
            "copies": tpu_programs.full_copies(text, batch * heads * length * min(d_k, d_v) * 2),
            "cycles": cycles,
            "loops": len(loops),
            "share": flops / 2 / UNITS[chip] / cycles,
        }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topologies", nargs="*", default=CHIPS)
    parser.add_argument("--operations", nargs="*", default=SHAPES)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    titles = ("chip", "operation", "pass", "bytes / least", "kernel / least", "copies", "cycles a token")
    print(f"| {' | '.join((*titles, 'matrix units'))} |")
    print("|---|---|---|---|---|---|---|---|")
    found = []
    for row in rows(arguments.topologies, arguments.operations):
        found.append(row)
        figures = f"{row['bytes']:.2f} | {row['kernel']:.2f} | {row['copies']} | {row['cycles']:.1f}"
        figures += f" | {100 * row['share']:.0f} %"
        print(f"| {row['chip']} | {row['operation']} | {row['pass']} | {figures} |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
