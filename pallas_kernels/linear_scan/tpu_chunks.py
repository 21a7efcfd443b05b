"""Parts of the TPU kernels: the copy of a block in scratch memory, and its 8 parallel chunks.

See `tpu` for the algorithm. Scratch memory holds a block of `chunk` * 8 time steps as float32, with
`chunk` + 1 rows from chunk to chunk. So one strided load gives step t of all chunks.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LANES = 128
CHUNKS = 8
TILE = 16
STEPS_UNROLLED = 8
TILES_UNROLLED = 4


def channel_groups(grid):
    """Yield (first channel group, channel slices) for each set of groups that run in parallel."""
    for first in range(0, grid.columns, grid.interleaved):
        yield first, [pl.ds((first + k) * LANES, LANES) for k in range(grid.interleaved)]


def rows_of(tile):
    """Return the rows of a tile in a block."""
    return pl.ds(pl.multiple_of(tile * TILE, TILE), TILE)


def for_each_tile(rows: int, body: Callable[..., Any], carried: Any = 0) -> Any:
    """Run carried = body(tile, row of the scratch memory, carried) for every 16 rows of a block.

    The loop runs chunk by chunk, with the tiles of a chunk at fixed offsets. Otherwise the computation of
    addresses would take most of the time.
    """
    tiles = rows // CHUNKS // TILE

    def step(chunk, carried):
        for tile in range(tiles):
            scratch_row = chunk * (tiles * TILE + 1) + tile * TILE
            carried = body(chunk * tiles + tile, scratch_row, carried)
        return carried

    return jax.lax.fori_loop(0, CHUNKS, step, carried, unroll=chunks_unrolled(rows))


def chunks_unrolled(rows: int) -> int:
    """Return the number of chunks that one iteration of `for_each_tile` processes, for 4 tiles."""
    return max(1, TILES_UNROLLED * CHUNKS * TILE // rows)


def not_reset_mask(bits_ref, tile):
    """Return a [16, 128] mask that is false where the bit of the row is set, or None without bits."""
    if bits_ref is None:
        return None
    bit = jnp.left_shift(1, jax.lax.broadcasted_iota(jnp.int32, (TILE, LANES), 0))
    return jnp.full((TILE, LANES), bits_ref[0, 0, 0, tile], jnp.int32) & bit == 0


def zero_at_resets(mask, value):
    """Set `value` to zero where the mask is false."""
    return value if mask is None else jnp.where(mask, value, 0.0)


def at_step(step, stride):
    """Return the rows of scratch memory that hold `step` of every chunk."""
    return pl.ds(step, CHUNKS, stride=stride)


def for_each_step(chunk, reverse, body, carried):
    """Run carried = body(step, carried) over the steps of a chunk in reading order."""
    unrolled = min(STEPS_UNROLLED, chunk)
    turns = chunk // unrolled

    def turn(count, carried):
        # One address with fixed offsets, also in reverse. Otherwise the compiler cannot prove that a step
        # does not store what the next step loads, and makes it wait.
        base = (turns - 1 - count if reverse else count) * unrolled
        for step in range(unrolled):
            carried = body(base + (unrolled - 1 - step if reverse else step), carried)
        return carried

    return jax.lax.fori_loop(0, turns, turn, carried)


def entering_states(ends, carry, reverse):
    """Return the state that enters each chunk, and the state that leaves the block.

    Args:
        ends: (H, P), each [8, 128]: chunk i maps the state h that enters it to P h + H.
        carry: the state that enters the block, the same on all 8 rows.
        reverse: whether the chunks are read from the last one.
    """
    state, product = ends
    place = jax.lax.broadcasted_iota(jnp.int32, (CHUNKS, LANES), 0)
    if reverse:
        place = CHUNKS - 1 - place

    def from_previous(value, distance):
        return pltpu.roll(value, CHUNKS - distance if reverse else distance, 0)

    for distance in (1, 2, 4):
        reached = place >= distance
        state = jnp.where(reached, product * from_previous(state, distance) + state, state)
        product = jnp.where(reached, product * from_previous(product, distance), product)
    state = product * carry + state
    entering = jnp.where(place == 0, carry, from_previous(state, 1))
    last = state[:1] if reverse else state[-1:]
    return entering, jnp.broadcast_to(last, (CHUNKS, LANES))


def scan_rows(grid, a_rows, x_rows, entering, *, reverse):
    """Replace x of a block in scratch memory with the states h.

    Args:
        grid: the grid of the call.
        a_rows: the decays, zero at resets, in scratch memory [groups, rows, 128].
        x_rows: the addends x, in scratch memory of the same shape.
        entering: for each group, the state that enters the block, broadcast to [8, 128].
        reverse: whether the block is read from its end.

    Returns:
        For each group, the states that enter the chunks, [8, 128], and the state that leaves the block.
    """
    groups = range(len(entering))

    def transfer(step, carried):
        rows = at_step(step, grid.stride)
        decays = [a_rows[k, rows] for k in groups]
        return [
            (decay * state + x_rows[k, rows], decay * product)
            for k, decay, (state, product) in zip(groups, decays, carried, strict=True)
        ]

    chunk_h0, leaving = _chunk_h0(grid, transfer, entering, reverse)
    scan_rows_from(grid, a_rows, x_rows, chunk_h0, reverse=reverse)
    return chunk_h0, leaving


def scan_rows_from(grid, a_rows, x_rows, chunk_h0, *, reverse, offset=0):
    """Replace x with the states, from the states that enter the chunks.

    The arguments are as for `scan_rows`, with x `offset` rows further down in scratch memory.
    """
    groups = range(len(chunk_h0))

    def update(step, states):
        rows, own = at_step(step, grid.stride), at_step(step + offset, grid.stride)
        states = [a_rows[k, rows] * states[k] + x_rows[k, own] for k in groups]
        for k in groups:
            x_rows[k, own] = states[k]
        return states

    for_each_step(grid.chunk, reverse, update, chunk_h0)


def gradient_rows(grid, a_rows, g_rows, h_prev_rows, entering, *, reverse, shift):
    """Replace the cotangents of a block's states with those of x, and the decays with their gradients.

    Args:
        grid: the grid of the call.
        a_rows: the decays, zero at resets, in scratch memory [groups, rows, 128].
        g_rows: the cotangents of the states, in scratch memory of the same shape.
        h_prev_rows: the state before step t of a chunk in row t + 1 - `shift`, in scratch memory of the
            same shape.
        entering: for each group, a[t+1] g[t+1] at the end of the block, broadcast to [8, 128].
        reverse: whether the recurrence reads the block from its end; the gradient reads the other way.
        shift: 0 or 1.

    Returns:
        For each group, a[t] g[t] at the start of the block, broadcast to [8, 128].
    """
    groups = range(len(entering))

    def transfer(step, carried):
        rows = at_step(step, grid.stride)
        decays = [a_rows[k, rows] for k in groups]
        return [
            (decay * (state + g_rows[k, rows]), decay * product)
            for k, decay, (state, product) in zip(groups, decays, carried, strict=True)
        ]

    def update(step, carried):
        rows, rows_before = at_step(step, grid.stride), at_step(step + 1 - shift, grid.stride)
        decays = [a_rows[k, rows] for k in groups]
        gradients = [carried[k] + g_rows[k, rows] for k in groups]
        for k in groups:
            g_rows[k, rows] = gradients[k]
            a_rows[k, rows] = gradients[k] * h_prev_rows[k, rows_before]
        return [decays[k] * gradients[k] for k in groups]

    chunk_h0, leaving = _chunk_h0(grid, transfer, entering, not reverse)
    for_each_step(grid.chunk, not reverse, update, chunk_h0)
    return leaving


def _chunk_h0(grid, transfer, entering, reverse):
    """Return, for each group, the state that enters each chunk and the state that leaves the block."""
    identity = (jnp.zeros((CHUNKS, LANES), jnp.float32), jnp.ones((CHUNKS, LANES), jnp.float32))
    ends = for_each_step(grid.chunk, reverse, transfer, [identity] * len(entering))
    pairs = [entering_states(end, carry, reverse) for end, carry in zip(ends, entering, strict=True)]
    return [into for into, _ in pairs], [leaving for _, leaving in pairs]
