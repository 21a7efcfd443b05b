"""How a call of the GPU kernel is cut into blocks, time chunks and tiles; all of it static.

A block is a warpgroup of 128 threads, `channels` of the model wide and `chunks` of time deep, so that
channels * chunks = 128. One chunk is the plain case: every thread has a channel to itself. Where that makes
too few blocks to fill the chip, a block is narrower and its threads share the time instead.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.linear_scan.padding import round_up

THREADS = 128
WORD = 32
MULTIPROCESSORS = 132
MAX_CHUNKS = 8
TILE_BYTES = 16 * 1024
BYTES_IN_FLIGHT = 160 * 1024
RESULT_SLOTS = 2


class GpuGrid(NamedTuple):
    """How a call is cut.

    Attributes:
        direction: "forward", "reverse", or "both" (the second half of the channels in reverse).
        channels: the number of channels of a block.
        chunks: the number of time chunks of a tile, read side by side.
        rows: the number of time steps of a chunk; a tile is `chunks * rows` steps.
        tiles: the number of tiles along time.
        slots: the number of tiles of each operand in shared memory.
        interpret: the argument of `plgpu.kernel` of this name.
    """

    direction: str
    channels: int
    chunks: int
    rows: int
    tiles: int
    slots: int
    interpret: object = None

    @property
    def words(self) -> int:
        """Words of reset flags of a chunk."""
        return self.rows // WORD

    @property
    def lanes(self) -> tuple[int, int]:
        """The shape of a value that has one element a thread."""
        return (self.chunks, self.channels)


def parts_of(direction: str) -> int:
    """Return into how many parts a direction cuts the channels."""
    return 2 if direction == "both" else 1


def count_blocks(shape: tuple[int, ...], direction: str, chunks: int) -> int:
    """Return the blocks of a call: each batch row's channels, so many at a time."""
    batch, _, channels = shape
    parts = parts_of(direction)
    width = THREADS // chunks
    return batch * parts * (round_up(channels // parts, width) // width)


def choose_chunks(shape: tuple[int, ...], direction: str) -> int:
    """Return how many time chunks a block reads side by side: 1, 2, 4 or 8.

    Chunks are doubled, and the channels of a block halved, for as long as all blocks still run at once, one
    on each of `MULTIPROCESSORS` (an H100's or H200's), and a chunk has a word of reset flags. A batch that
    fills the chip with one chunk a block keeps that: a chunked block does its arithmetic twice. A row of a
    tile is never less than 16 channels: 32 bytes of bfloat16 are the unit in which memory is read.
    """
    chunks = 1
    while (
        chunks < MAX_CHUNKS
        and count_blocks(shape, direction, 2 * chunks) <= MULTIPROCESSORS
        and 2 * chunks * WORD <= shape[1]
    ):
        chunks *= 2
    return chunks


def make_grid(
    a: jax.Array,
    x: jax.Array,
    direction: str,
    *,
    streams: int,
    chunks: int,
    interpret: object,
) -> GpuGrid:
    """Return the grid for padded operands like `a` and `x` of which a pass reads `streams`.

    Tiles are as long as divide the sequence, up to `TILE_BYTES`, and together `BYTES_IN_FLIGHT`: a
    multiprocessor wants some 35 KiB under way to be served at full speed. Where there are more blocks than
    multiprocessors both are halved, so that two blocks share one.
    """
    item = jnp.promote_types(a.dtype, x.dtype).itemsize
    length, channels = a.shape[1], THREADS // chunks
    sharing = 1 if count_blocks(a.shape, direction, chunks) <= MULTIPROCESSORS else 2
    max_rows = max(WORD, TILE_BYTES // sharing // (THREADS * item))
    rows = max(n for n in range(WORD, max_rows + 1, WORD) if length % (chunks * n) == 0)
    tiles = length // (chunks * rows)
    slots = max(2, BYTES_IN_FLIGHT // sharing // (streams * rows * THREADS * item))
    return GpuGrid(direction, channels, chunks, rows, tiles, min(slots, tiles), interpret)
