"""How a selective scan is cut into the blocks of a GPU kernel; all of it static."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.linear_scan.padding import round_up

THREADS = 128
TILE = 16
# Two states have 64 sums over channels in a tile, which is what the layout of a tensor core's rows holds.
STATES_UNIT = 2
MAX_STATES = 64
MAX_TILES = 8
# Of the 227 KiB that a block may have; forward half, so that two blocks share a multiprocessor.
FORWARD_BYTES = 112 * 1024
BACKWARD_BYTES = 224 * 1024
MAX_SLOTS = 6
# A row of products starts eight banks after the one before, so that a load of eight rows meets each once.
PRODUCTS_WIDTH = THREADS + 8
SUMS = 2 * STATES_UNIT * TILE


class GpuGrid(NamedTuple):
    """How a call is cut.

    Attributes:
        direction: "forward", "reverse", or "both" (the second half of the channels in reverse).
        states: the padded number of states of a channel.
        columns: the width of a row of B, C and what is kept at resets.
        tiles: the number of tiles of 16 steps along time.
        block_tiles: the number of tiles between two states that are kept for the gradient.
        forward_slots: the number of tiles of each operand in shared memory, forward.
        result_slots: the number of tiles of each result in shared memory, backward.
        interpret: the argument of `plgpu.kernel` of this name.
    """

    direction: str
    states: int
    columns: int
    tiles: int
    block_tiles: int
    forward_slots: int
    result_slots: int
    interpret: object = None

    @property
    def blocks(self) -> int:
        """The number of states of a channel that are kept for the gradient."""
        return self.tiles // self.block_tiles

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions in which the sequence is read, of each an equal part of the channels."""
        return ("forward", "reverse") if self.direction == "both" else (self.direction,)


def make_grid(
    length: int, states: int, direction: str, *, dtype: DTypeLike, gated: bool, interpret: object
) -> GpuGrid:
    """Return the grid of a call, the same for both passes.

    Args:
        length: the steps of time before padding.
        states: the padded number of states of a channel.
        direction: "forward", "reverse" or "both".
        dtype: the type of the sequences.
        gated: whether there is a gate.
        interpret: the argument of `plgpu.kernel` of this name.
    """
    columns = round_up(2 * states + (2 if direction == "both" else 1), 4)
    tile = TILE * THREADS * jnp.dtype(dtype).itemsize
    row = states * THREADS * 4
    column_bytes = TILE * columns * 4
    forward_slot = (3 if gated else 2) * tile + column_bytes
    forward_slots = (FORWARD_BYTES - 2 * row - 2 * tile) // forward_slot
    # The products; A and the cotangents of A and of the state; two slots of both streams of tiles.
    fixed = SUMS * PRODUCTS_WIDTH * 4 + 3 * row + 2 * (6 * tile + 2 * column_bytes)
    result_slot = 3 * tile + states // STATES_UNIT * SUMS * 4
    result_slots = 2 if fixed + 2 * result_slot + 4 * row <= BACKWARD_BYTES else 1
    room = (BACKWARD_BYTES - fixed - result_slots * result_slot) // row
    tiles = round_up(length, TILE) // TILE
    block_tiles = 1
    while 2 * block_tiles <= min(room, MAX_TILES, tiles):
        block_tiles *= 2
    tiles = round_up(tiles, block_tiles)
    return GpuGrid(
        direction,
        states,
        columns,
        tiles,
        block_tiles,
        max(2, min(forward_slots, tiles, MAX_SLOTS)),
        result_slots,
        interpret,
    )
