"""The forward pass of a block of the GPU kernel. See `gpu`."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.selective_scan.gpu_tile import (
    THREADS,
    TILE,
    BlockIndices,
    GpuGrid,
    Ring,
    Steps,
    for_each_state,
    load_rows,
    spread,
    zeros,
)

RESULT_SLOTS = 2


def scratch(grid: GpuGrid, sequences: dict[str, jax.Array], results: dict[str, Any]) -> dict[str, Any]:
    """Return the shared memory of a block by name; see `gpu.call_kernel` for the arguments."""
    slots, tile = grid.forward_slots, (TILE, THREADS)
    return {
        **{f"in_{name}": plgpu.SMEM((slots, *tile), array.dtype) for name, array in sequences.items()},
        "in_columns": plgpu.SMEM((slots, TILE, grid.columns), jnp.float32),
        "in_barriers": plgpu.Barrier(num_arrivals=len(sequences) + 1, num_barriers=slots),
        "y_slots": plgpu.SMEM((RESULT_SLOTS, *tile), results["y"].dtype),
        "own_rates": plgpu.SMEM((grid.states, THREADS), jnp.float32),
        "own_state": plgpu.SMEM((grid.states, THREADS), jnp.float32),
    }


def run(grid: GpuGrid, refs: dict[str, Any], block: BlockIndices, *, with_resets: bool) -> None:
    """Scan a block's channels over all tiles."""
    row, lanes = block.row, block.lanes
    gated = "z" in refs
    names = ("u", "dt", "z") if gated else ("u", "dt")
    ring = Ring("in", grid, block, refs, names=names, tile_of=partial(block.tile_at, grid))
    ring.start(grid.tiles)
    rates, state = refs["own_rates"], refs["own_state"]
    load_rows(grid, refs["A"].at[:, lanes], rates)
    load_rows(grid, refs["h0"].at[row, :, lanes], state)
    factor = refs["D"][lanes]
    bias = refs["dt_bias"][lanes] if "dt_bias" in refs else None

    def run_tile(number, carry):
        tile = block.tile_at(grid, number)

        @pl.when(jax.lax.rem(number, grid.block_tiles) == 0)
        def _():
            kept = refs["block_h0"].at[row, jax.lax.div(tile, grid.block_tiles), :, lanes]

            def keep(n):
                kept[n] = state[n]

            for_each_state(grid, keep)

        slot = ring.wait(number)
        steps = Steps(ring, slot, bias, with_resets=with_resets)

        def run_state(n, readout):
            readout, rate, h = list(readout), rates[n], state[n]
            for t in block.steps:
                weight, reading = steps.weights(t, n)
                h = steps.decay(t, rate) * h + steps.dtu[t] * weight
                readout[t] += h * reading
            state[n] = h
            return readout

        readout = jax.lax.fori_loop(0, grid.states, run_state, [zeros(grid)] * TILE)
        plgpu.wait_smem_to_gmem(RESULT_SLOTS - 1, wait_read_only=True)
        y_slot = jax.lax.rem(number, RESULT_SLOTS)
        inputs = ring.rows("u", slot)
        gates = ring.rows("z", slot) if gated else None
        for t in range(TILE):
            y = readout[t] + factor * inputs[t]
            if gates is not None:
                y *= gates[t] * jax.lax.logistic(gates[t])
            refs["y_slots"][y_slot, t] = y.astype(refs["y_slots"].dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(refs["y_slots"].at[y_slot], refs["y"].at[row, tile, :, lanes])
        ring.refill(number, grid.tiles)
        return carry

    jax.lax.fori_loop(0, grid.tiles, run_tile, jnp.int32(0))
    plgpu.wait_smem_to_gmem(0)
    last = refs["last"].at[row, :, lanes]

    def leave(n):
        last[n] = spread(grid, state[n])

    for_each_state(grid, leave)
