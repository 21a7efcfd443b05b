"""The backward pass of a block of the GPU kernel. See `gpu`."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.selective_scan.gpu_tile import (
    PRODUCTS_WIDTH,
    STATES_UNIT,
    SUMS,
    THREADS,
    TILE,
    BlockIndices,
    GpuGrid,
    Ring,
    Steps,
    for_each_state,
    load_rows,
    spread,
    with_layout,
    zeros,
)

SLOTS = 2


def scratch(grid: GpuGrid, sequences: dict[str, jax.Array], results: dict[str, Any]) -> dict[str, Any]:
    """Return the shared memory of a block by name; see `gpu.call_kernel` for the arguments."""
    tile, rows = (TILE, THREADS), (grid.states, THREADS)
    memory = {
        **{f"in_{name}": plgpu.SMEM((SLOTS, *tile), array.dtype) for name, array in sequences.items()},
        "in_columns": plgpu.SMEM((SLOTS, TILE, grid.columns), jnp.float32),
        "in_barriers": plgpu.Barrier(num_arrivals=len(sequences) + 1, num_barriers=SLOTS),
        **{
            f"{name}_slots": plgpu.SMEM((grid.result_slots, *tile), results[name].dtype)
            for name in _tiles_of(results)
        },
        "dcolumns_slots": plgpu.SMEM((grid.result_slots, grid.states // STATES_UNIT, SUMS), jnp.float32),
        "products": plgpu.SMEM((SUMS, PRODUCTS_WIDTH), jnp.float32),
        "own_rates": plgpu.SMEM(rows, jnp.float32),
        "own_dstate": plgpu.SMEM(rows, jnp.float32),
        "own_drates": plgpu.SMEM(rows, jnp.float32),
        "own_entering": plgpu.SMEM((grid.block_tiles, *rows), jnp.float32),
    }
    if grid.block_tiles > 1:
        memory |= {
            f"again_{name}": plgpu.SMEM((SLOTS, *tile), sequences[name].dtype) for name in ("u", "dt")
        }
        memory["again_columns"] = plgpu.SMEM((SLOTS, TILE, grid.columns), jnp.float32)
        memory["again_barriers"] = plgpu.Barrier(num_arrivals=3, num_barriers=SLOTS)
    return memory


def _tiles_of(names):
    """Return the names of the results that are sequences."""
    return [name for name in ("du", "ddt", "dz") if name in names]


def run(grid: GpuGrid, refs: dict[str, Any], block: BlockIndices, *, with_resets: bool) -> None:
    """Compute the cotangents of a block's channels, from the last tile read to the first."""
    row, lanes = block.row, block.lanes
    gated, tiles = "z" in refs, grid.block_tiles
    rates, entering = refs["own_rates"], refs["own_entering"]
    dstate, drates = refs["own_dstate"], refs["own_drates"]

    def tile_of(number):
        return block.tile_at(grid, grid.tiles - 1 - number)

    def tile_again(number):
        # Recompute all tiles of each block except the last one, in reading order.
        within = jax.lax.rem(number, tiles - 1)
        return block.tile_at(grid, (grid.blocks - 1 - jax.lax.div(number, tiles - 1)) * tiles + within)

    names = ("u", "dt", "z", "dy") if gated else ("u", "dt", "dy")
    ring = Ring("in", grid, block, refs, names=names, tile_of=tile_of)
    count_again = grid.blocks * (tiles - 1)
    again = None
    if tiles > 1:
        again = Ring("again", grid, block, refs, names=("u", "dt"), tile_of=tile_again)
        again.start(count_again)
    ring.start(grid.tiles)
    load_rows(grid, refs["A"].at[:, lanes], rates)
    load_rows(grid, refs["dlast"].at[row, :, lanes], dstate)

    def clear(n):
        drates[n] = zeros(grid)

    for_each_state(grid, clear)
    factor = refs["D"][lanes]
    bias = refs["dt_bias"][lanes] if "dt_bias" in refs else None

    def enter_next_tile(ring, first, within):
        """Compute the states that enter the next tile of the block."""
        number = first + within
        slot = ring.wait(number)
        steps = Steps(ring, slot, bias, with_resets=with_resets)

        def run_state(n):
            rate, h = rates[n], entering[within, n]
            for t in block.steps:
                h = steps.decay(t, rate) * h + steps.dtu[t] * steps.weights(t, n)[0]
            entering[within + 1, n] = h

        for_each_state(grid, run_state)
        plgpu.commit_smem()
        ring.refill(number, count_again)

    def pull_tile(number, within, sums):
        tile = tile_of(number)
        slot, out = ring.wait(number), jax.lax.rem(number, grid.result_slots)
        steps = Steps(ring, slot, bias, with_resets=with_resets)
        dvs = ring.rows("dy", slot)
        if gated:
            dvs = [dv * z * jax.lax.logistic(z) for dv, z in zip(dvs, ring.rows("z", slot), strict=True)]
        copies = (grid.result_slots - 1) * (len(_tiles_of(refs)) + 1)
        plgpu.wait_smem_to_gmem(copies, wait_read_only=True)

        def pull_state(n, which, totals):
            g_B, dlog_A, readout = totals
            rate, decays, states = rates[n], {}, [entering[within, n]]
            for t in block.steps:
                weight, reading = steps.weights(t, n)
                decays[t] = steps.decay(t, rate)
                states.append(decays[t] * states[-1] + steps.dtu[t] * weight)
                if gated:
                    readout[t] += states[-1] * reading
            dh, drate = dstate[n], drates[n]
            for place, t in reversed(list(enumerate(block.steps))):
                weight, reading = steps.weights(t, n)
                g = dh + dvs[t] * reading
                dh = decays[t] * g
                dlog = dh * states[place]
                drate += steps.dt[t] * dlog
                g_B[t] += g * weight
                dlog_A[t] += dlog * rate
                first = which * 2 * TILE + t
                refs["products"][first, pl.ds(0, THREADS)] = g * steps.dtu[t]
                refs["products"][first + TILE, pl.ds(0, THREADS)] = states[place + 1] * dvs[t]
            dstate[n], drates[n] = dh, drate

        def pull_states(pair, totals):
            totals = [list(total) for total in totals]
            plgpu.commit_smem()
            for which in range(STATES_UNIT):
                pull_state(STATES_UNIT * pair + which, which, totals)
            plgpu.commit_smem()
            products = with_layout(grid, refs["products"][:, pl.ds(0, THREADS)], plgpu.Layout.WGMMA)
            refs["dcolumns_slots"][out, pair] = jnp.sum(products, axis=1)
            return totals

        none = [zeros(grid)] * TILE
        totals = [none, none, none if gated else []]
        pairs = grid.states // STATES_UNIT
        g_B, dlog_A, readout = jax.lax.fori_loop(0, pairs, pull_states, totals)
        dfactor, dbias = sums
        inputs, dys = ring.rows("u", slot), ring.rows("dy", slot)
        gates = ring.rows("z", slot) if gated else None
        for t in range(TILE):
            # The rates are in base 2.
            ddt = dlog_A[t] * math.log(2) + inputs[t] * g_B[t]
            if bias is not None:
                # exp(raw - softplus(raw)) is sigmoid(raw), accurate also where raw is far below zero.
                ddt *= jnp.exp(steps.raw[t] - steps.dt[t])
                dbias += ddt
            dfactor += dvs[t] * inputs[t]
            _store(refs["du_slots"], out, t, steps.dt[t] * g_B[t] + factor * dvs[t])
            _store(refs["ddt_slots"], out, t, ddt)
            if gates is not None:
                gate = jax.lax.logistic(gates[t])
                dz = (readout[t] + factor * inputs[t]) * gate * (1.0 + gates[t] * (1.0 - gate))
                _store(refs["dz_slots"], out, t, dys[t] * dz)
        plgpu.commit_smem()
        for name in _tiles_of(refs):
            plgpu.copy_smem_to_gmem(refs[f"{name}_slots"].at[out], refs[name].at[row, tile, :, lanes])
        plgpu.copy_smem_to_gmem(
            refs["dcolumns_slots"].at[out], refs["dcolumns"].at[block.column, row, tile]
        )
        ring.refill(number, grid.tiles)
        return dfactor, dbias

    def run_block(number, sums):
        kept = refs["block_h0"].at[row, block.block_at(grid, grid.blocks - 1 - number), :, lanes]
        load_rows(grid, kept, entering.at[0])
        if again is not None:

            def enter(within, carry):
                enter_next_tile(again, number * (tiles - 1), within)
                return carry

            jax.lax.fori_loop(0, tiles - 1, enter, jnp.int32(0))

        def pull(count, sums):
            return pull_tile(number * tiles + count, tiles - 1 - count, sums)

        return jax.lax.fori_loop(0, tiles, pull, sums)

    sums = jax.lax.fori_loop(0, grid.blocks, run_block, (zeros(grid), zeros(grid)))
    plgpu.wait_smem_to_gmem(0)
    for name, total in zip(("dD", "ddt_bias"), sums, strict=True):
        if name in refs:
            refs[name][row, lanes] = spread(grid, total)

    def leave(n):
        refs["dh0"][row, n, lanes] = dstate[n]
        refs["dA"][row, n, lanes] = drates[n]

    for_each_state(grid, leave)


def _store(ref, slot, t, value):
    ref[slot, t] = value.astype(ref.dtype)
