"""What both TPU kernels are made of: a block's copy in scratch memory, and its 8 chunks side by side.

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


def for_each_tile(rows, body):
    """Call body(tile, row of the block, row of the scratch memory) for every 16 rows.

    Chunk by chunk, the tiles of a chunk at fixed distances: else most of the time goes into addresses.
    """
    chunk = rows // CHUNKS

    def step(number, nothing):
        row, scratch_row = pl.multiple_of(number * chunk, TILE), number * (chunk + 1)
        for offset in range(0, chunk, TILE):
            body(number * (chunk // TILE) + offset // TILE, row + offset, scratch_row + offset)
        return nothing

    jax.lax.fori_loop(0, CHUNKS, step, 0)


def keep_mask(bits_ref, tile):
    """Return a [16, 128] mask that is false where the bit of the row is set."""
    row = jax.lax.broadcasted_iota(jnp.int32, (TILE, LANES), 0)
    word = bits_ref[0, 0, 0, tile]
    return jax.lax.shift_right_logical(jnp.full((TILE, LANES), word, jnp.int32), row) & 1 == 0


def at_step(step, stride):
    """Rows of scratch memory that hold this step of every chunk."""
    return pl.ds(step, CHUNKS, stride=stride)


def for_each_step(chunk, reverse, body, carried):
    """Run carried = body(step, carried) over the steps of a chunk in reading order."""

    def step(count, carried):
        return body(chunk - 1 - count if reverse else count, carried)

    return jax.lax.fori_loop(0, chunk, step, carried, unroll=min(STEPS_UNROLLED, chunk))


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
