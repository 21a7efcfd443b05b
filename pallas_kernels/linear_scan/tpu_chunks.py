"""What the TPU kernels are made of: a block's copy in scratch memory, and its 8 chunks side by side.

See `tpu` for the algorithm. A block of `chunk` * 8 time steps lies in scratch memory with `chunk` + 1 rows
from chunk to chunk, as float32; step t of all chunks is then one strided load.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LANES = 128
CHUNKS = 8
TILE = 16
STEPS_UNROLLED = 8


def channel_groups(plan):
    """Yield (first group of channels, slices of its channels) for the groups that run side by side."""
    for first in range(0, plan.columns, plan.together):
        yield first, [pl.ds((first + k) * LANES, LANES) for k in range(plan.together)]


def rows_of(tile):
    """Return the rows of a tile in its block."""
    return pl.ds(pl.multiple_of(tile * TILE, TILE), TILE)


def for_each_tile(rows, body, carried=0):
    """Run carried = body(tile, row of the scratch memory, carried) for every 16 rows of a block.

    Chunk by chunk, the tiles of a chunk at fixed distances: else most of the time goes into addresses.
    """
    tiles = rows // CHUNKS // TILE

    def step(chunk, carried):
        for tile in range(tiles):
            scratch_row = chunk * (tiles * TILE + 1) + tile * TILE
            carried = body(chunk * tiles + tile, scratch_row, carried)
        return carried

    return jax.lax.fori_loop(0, CHUNKS, step, carried)


def keep_mask(bits_ref, tile):
    """Return a [16, 128] mask that is false where the bit of the row is set; None if there are no bits."""
    if bits_ref is None:
        return None
    bit = jnp.left_shift(1, jax.lax.broadcasted_iota(jnp.int32, (TILE, LANES), 0))
    return jnp.full((TILE, LANES), bits_ref[0, 0, 0, tile], jnp.int32) & bit == 0


def keep(mask, value):
    """Return `value`, zero where the mask is false."""
    return value if mask is None else jnp.where(mask, value, 0.0)


def at_step(step, stride):
    """Rows of scratch memory that hold this step of every chunk."""
    return pl.ds(step, CHUNKS, stride=stride)


def for_each_step(chunk, reverse, body, carried):
    """Run carried = body(step, carried) over the steps of a chunk in reading order."""
    unrolled = min(STEPS_UNROLLED, chunk)
    turns = chunk // unrolled

    def turn(count, carried):
        # One address with fixed distances, also backwards: else the compiler cannot tell that what a step
        # stores is not what the next one loads, and lets it wait.
        base = (turns - 1 - count if reverse else count) * unrolled
        for step in range(unrolled):
            carried = body(base + (unrolled - 1 - step if reverse else step), carried)
        return carried

    return jax.lax.fori_loop(0, turns, turn, carried)


def enter_chunks(ends, carry, reverse):
    """Return the state that enters each chunk, and the one that leaves the block.

    Args:
        ends: (H, P), each [8, 128]: chunk i takes the state h that enters it to P h + H.
        carry: the state that enters the block, the same on all 8 rows.
        reverse: whether the chunks are read from the last one.
    """
    state, product = ends
    place = jax.lax.broadcasted_iota(jnp.int32, (CHUNKS, LANES), 0)
    if reverse:
        place = CHUNKS - 1 - place

    def from_before(value, distance):
        return pltpu.roll(value, CHUNKS - distance if reverse else distance, 0)

    for distance in (1, 2, 4):
        reached = place >= distance
        state = jnp.where(reached, product * from_before(state, distance) + state, state)
        product = jnp.where(reached, product * from_before(product, distance), product)
    state = product * carry + state
    entering = jnp.where(place == 0, carry, from_before(state, 1))
    last = state[:1] if reverse else state[-1:]
    return entering, jnp.broadcast_to(last, (CHUNKS, LANES))


def scan_rows(plan, decay_rows, entry_rows, entering, *, reverse):
    """Replace the entries of a block in scratch memory by the states.

    Args:
        plan: how the call is cut.
        decay_rows: scratch memory [groups, rows, 128] with the decays, zero at resets.
        entry_rows: likewise the entries.
        entering: for each group, the state that enters the block, on [8, 128].
        reverse: whether the block is read from its end.

    Returns:
        For each group the states that enter the chunks [8, 128], and the one that leaves the block.
    """
    groups = range(len(entering))

    def effect(step, carried):
        rows = at_step(step, plan.stride)
        decays = [decay_rows[k, rows] for k in groups]
        return [
            (decay * state + entry_rows[k, rows], decay * product)
            for k, decay, (state, product) in zip(groups, decays, carried, strict=True)
        ]

    into_chunks, leaving = _into_chunks(plan, effect, entering, reverse)
    states_from(plan, decay_rows, entry_rows, into_chunks, reverse=reverse)
    return into_chunks, leaving


def states_from(plan, decay_rows, entry_rows, into_chunks, *, reverse, offset=0):
    """Replace the entries by the states where the states that enter the chunks are known.

    As `scan_rows`, the entries `offset` rows further down in scratch memory.
    """
    groups = range(len(into_chunks))

    def update(step, states):
        rows, entry = at_step(step, plan.stride), at_step(step + offset, plan.stride)
        states = [decay_rows[k, rows] * states[k] + entry_rows[k, entry] for k in groups]
        for k in groups:
            entry_rows[k, entry] = states[k]
        return states

    for_each_step(plan.chunk, reverse, update, into_chunks)


def gradient_rows(plan, decay_rows, cotangent_rows, before_rows, entering, *, reverse, shift):
    """Replace the cotangents of a block's states by those of its entries, and decays by their gradients.

    Args:
        plan: how the call is cut.
        decay_rows: scratch memory [groups, rows, 128] with the decays, zero at resets.
        cotangent_rows: likewise the cotangents of the states.
        before_rows: likewise, for step t of a chunk, the state before it in row t + 1 - `shift`.
        entering: for each group, a[t+1] g[t+1] at the block's end, on [8, 128].
        reverse: whether the recurrence reads the block from its end; the gradient runs against it.
        shift: 0 or 1.

    Returns:
        For each group a[t] g[t] at the block's beginning, on [8, 128].
    """
    groups = range(len(entering))

    def effect(step, carried):
        rows = at_step(step, plan.stride)
        decays = [decay_rows[k, rows] for k in groups]
        return [
            (decay * (state + cotangent_rows[k, rows]), decay * product)
            for k, decay, (state, product) in zip(groups, decays, carried, strict=True)
        ]

    def update(step, carried):
        rows, rows_before = at_step(step, plan.stride), at_step(step + 1 - shift, plan.stride)
        decays = [decay_rows[k, rows] for k in groups]
        gradients = [carried[k] + cotangent_rows[k, rows] for k in groups]
        for k in groups:
            cotangent_rows[k, rows] = gradients[k]
            decay_rows[k, rows] = gradients[k] * before_rows[k, rows_before]
        return [decays[k] * gradients[k] for k in groups]

    into_chunks, leaving = _into_chunks(plan, effect, entering, not reverse)
    for_each_step(plan.chunk, not reverse, update, into_chunks)
    return leaving


def _into_chunks(plan, effect, entering, reverse):
    """Return, for each group, what enters each chunk and what leaves the block."""
    nothing = (jnp.zeros((CHUNKS, LANES), jnp.float32), jnp.ones((CHUNKS, LANES), jnp.float32))
    ends = for_each_step(plan.chunk, reverse, effect, [nothing] * len(entering))
    pairs = [enter_chunks(end, carry, reverse) for end, carry in zip(ends, entering, strict=True)]
    return [into for into, _ in pairs], [leaving for _, leaving in pairs]
