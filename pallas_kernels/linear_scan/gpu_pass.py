"""A pass of a block of the GPU kernel along time: tiles in, states through the steps, tiles out.

No other block and no other warpgroup takes part in what a block does. Its 128 threads and the asynchronous
copies are kept in step by: a barrier a slot, for tiles on their way in; `wait_smem_to_gmem`, for results on
their way out; and `commit_smem` (a fence and a barrier of the warpgroup) before anything is read or copied
that threads wrote, and before anything that they read is written or filled again. Every value has one
element a thread, [chunks, channels]; a step loads one row of every chunk.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.linear_scan.padding import round_up

# A block is a warpgroup of 128 threads, `channels` of the model wide and `chunks` of time deep, so
# channels * chunks = 128. One chunk is the plain case: every thread has a channel to itself. Where that
# makes too few blocks to fill the chip, a block is narrower and its threads share the time instead.

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
    """Return the grid of a pass that reads `streams` padded operands like `a` and `x`.

    Tiles are as long as divide the sequence, up to `TILE_BYTES`, and together `BYTES_IN_FLIGHT`: a
    multiprocessor wants some 35 KiB under way to be served at full speed. Where there are more blocks than
    multiprocessors both are halved, so two blocks share one.
    """
    item = jnp.promote_types(a.dtype, x.dtype).itemsize
    length, channels = a.shape[1], THREADS // chunks
    sharing = 1 if count_blocks(a.shape, direction, chunks) <= MULTIPROCESSORS else 2
    max_rows = max(WORD, TILE_BYTES // sharing // (THREADS * item))
    rows = max(n for n in range(WORD, max_rows + 1, WORD) if length % (chunks * n) == 0)
    tiles = length // (chunks * rows)
    slots = max(2, BYTES_IN_FLIGHT // sharing // (streams * rows * THREADS * item))
    return GpuGrid(direction, channels, chunks, rows, tiles, min(slots, tiles), interpret)


UNROLLED = 8


class Pass(NamedTuple):
    """What a pass computes; all values are float32.

    Attributes:
        reverse_time: whether the pass visits time in the reverse of the reading order, as for gradients; it
            then needs h of the step read before.
        advance: (state, decay, new) -> state after the step, affine in the state with slope `decay`.
        results: (state before the step, state after it, new, h of the step read before, clear) -> what is
            written, `clear` being the function that puts zero where the step is a reset.
    """

    reverse_time: bool
    advance: Callable
    results: Callable


class BlockIndices(NamedTuple):
    """The indices of the part of the arrays that a block computes.

    Attributes:
        row: the row of the batch.
        flags_row: the row of the reset flags.
        lanes: the slice of the channels.
        reverse: whether the sequence is read from its end.
    """

    row: Any
    flags_row: Any
    lanes: Any
    reverse: bool


class Refs(NamedTuple):
    """Memory, global and shared: [batch, chunks, rows, channels], and [slots, chunks, rows, channels].

    Attributes:
        streams: the sequences a, x, and with `reverse_time` h.
        flags: the words of reset flags in place of rows, or None.
        start: the state before the first step, [batch, chunks, channels]; the same for every chunk.
        results: the sequences that are written.
        end: the state after the last step with `reverse_time`, of the shape of `start`; else None.
        slots: the tiles of `streams` in shared memory.
        result_slots: the tiles of `results` in shared memory.
        barriers: the barrier of each slot, for the copies that fill it.
        flag_slots: the tiles of `flags` in shared memory.
        exchange: the transfers (P, H) of the chunks between identities, [2, 3 * chunks, channels].
        edges: h at the borders of the chunks, [2 * chunks, channels].
    """

    streams: list
    flags: Any
    start: Any
    results: list
    end: Any
    slots: list
    result_slots: list
    barriers: Any
    flag_slots: Any = None
    exchange: Any = None
    edges: Any = None


def run_pass(grid: GpuGrid, scan_pass: Pass, refs: Refs, block: BlockIndices) -> None:
    """Take a block's channels through all tiles."""
    row, _, lanes, reverse = block
    descending = reverse != scan_pass.reverse_time

    def tile_at(number):
        return grid.tiles - 1 - number if descending else number

    def fetch(number):
        slot, chunks = jax.lax.rem(number, grid.slots), pl.ds(tile_at(number) * grid.chunks, grid.chunks)
        copy = partial(plgpu.copy_gmem_to_smem, barrier=refs.barriers.at[slot])
        for ref, shared in zip(refs.streams, refs.slots, strict=True):
            copy(ref.at[row, chunks, :, lanes], shared.at[slot])
        if refs.flags is not None:
            copy(refs.flags.at[block.flags_row, chunks], refs.flag_slots.at[slot])

    def run_tile(number, carry):
        slot, result_slot = jax.lax.rem(number, grid.slots), jax.lax.rem(number, RESULT_SLOTS)
        tile = tile_at(number)
        edge = _load_outside(grid, refs, block, tile) if scan_pass.reverse_time else None
        plgpu.barrier_wait(refs.barriers.at[slot])
        steps = partial(_steps, refs, slot, descending)
        entering = carry
        if grid.chunks > 1:
            _store_chunk_transfers(grid, scan_pass, refs, steps, descending)
            if scan_pass.reverse_time:
                _store_chunk_edges(grid, refs, slot, edge, reverse)
            plgpu.commit_smem()
            entering, carry = _entering_states(grid, refs, carry, descending)
            if scan_pass.reverse_time:
                edge = refs.edges[pl.ds(1 if reverse else grid.chunks - 1, grid.chunks)]
        plgpu.wait_smem_to_gmem((RESULT_SLOTS - 1) * len(refs.results), wait_read_only=True)

        def update(first, is_last, state):
            h_prevs: list[Any] = [None] * UNROLLED
            if scan_pass.reverse_time:
                *h_prevs, last, inside = _h_prevs(refs.slots[2], slot, first, is_last, reverse)
                h_prevs.append(jnp.where(inside, last, cast(jax.Array, edge)))
            for (t, decay, new, clear), h_prev in zip(steps(first), h_prevs, strict=True):
                after = scan_pass.advance(state, decay, new)
                written = scan_pass.results(state, after, new, h_prev, clear)
                for shared, value in zip(refs.result_slots, written, strict=True):
                    shared[result_slot, :, t] = value.astype(shared.dtype)
                state = after
            return state

        state = _for_each_group(grid, descending, update, entering)
        plgpu.commit_smem()
        chunks = pl.ds(tile * grid.chunks, grid.chunks)
        for shared, ref in zip(refs.result_slots, refs.results, strict=True):
            plgpu.copy_smem_to_gmem(shared.at[result_slot], ref.at[row, chunks, :, lanes])
        pl.when(number + grid.slots < grid.tiles)(lambda: fetch(number + grid.slots))
        return state if grid.chunks == 1 else carry

    for number in range(grid.slots):
        fetch(jnp.int32(number))
    if grid.chunks > 1:
        for rows in (pl.ds(0, grid.chunks), pl.ds(2 * grid.chunks, grid.chunks)):
            for which, value in enumerate(_identity_transfer(grid)):
                refs.exchange[which, rows] = value
    start = jnp.zeros(grid.lanes, jnp.float32) if scan_pass.reverse_time else refs.start[row, :, lanes]
    state = jax.lax.fori_loop(0, grid.tiles, run_tile, _laid_out(grid, start))
    plgpu.wait_smem_to_gmem(0)
    if scan_pass.reverse_time:
        refs.end[row, :, lanes] = state


def _laid_out(grid, value):
    """Give the compiler the layout of what a loop carries; the interpreter has no layouts."""
    if grid.interpret is not None:
        return value
    return plgpu.layout_cast(value, plgpu.Layout.WG_STRIDED(grid.lanes, 1))


def _identity_transfer(grid):
    """Return the transfer (P, H) of a chunk that changes nothing: 1 h + 0."""
    one, zero = jnp.ones(grid.lanes, jnp.float32), jnp.zeros(grid.lanes, jnp.float32)
    return _laid_out(grid, one), _laid_out(grid, zero)


def _for_each_group(grid, descending, function, carry):
    """Run `function(first row, whether it is the last group, carry)` over groups of a chunk's rows."""
    groups = grid.rows // UNROLLED

    def group(index, carry):
        first = UNROLLED * (groups - 1 - index if descending else index)
        return function(first, index == groups - 1, carry)

    return jax.lax.fori_loop(0, groups, group, carry)


def _steps(refs, slot, descending, first):
    """Return (row, decay, new, clear) of each step of a group, in the order of the pass."""
    word = None if refs.flags is None else refs.flag_slots[slot, :, jax.lax.div(first, WORD)]

    def step(t):
        def clear(value):
            if word is None:
                return value
            bit = jax.lax.shift_left(jnp.int32(1), jax.lax.rem(t, WORD))
            return jnp.where((word & bit) == 0, value, 0.0)

        decay, new = (shared[slot, :, t].astype(jnp.float32) for shared in refs.slots[:2])
        return t, clear(decay), new, clear

    return [step(first + k) for k in range(UNROLLED)[:: -1 if descending else 1]]


def _h_prevs(h, slot, first, is_last, reverse):
    """Return h of the step read before each step of a group, in the order of a pass in reverse time.

    The one of the last step is in the next group. In a chunk's last group it is outside of the chunk, and
    what is returned has no meaning; whether it is inside is returned last.
    """
    if reverse:
        rows, beyond = [first + k + 1 for k in range(UNROLLED - 1)], first + UNROLLED
    else:
        rows, beyond = [first + k - 1 for k in range(UNROLLED - 1, 0, -1)], first - 1
    rows.append(jnp.where(is_last, first, beyond))
    return [*(h[slot, :, t].astype(jnp.float32) for t in rows), jnp.logical_not(is_last)]


def _border(grid, reverse):
    """Return the row of a chunk that the next chunk, in reading order, reads before its first."""
    return 0 if reverse else grid.rows - 1


def _load_outside(grid, refs, block, tile):
    """Return h at the borders of the chunks of the tile that is read before `tile`; h0 if there is none.

    Only that of the one chunk which touches `tile` is of use; all threads do the same.
    """
    is_first = tile == (grid.tiles - 1 if block.reverse else 0)
    other = jnp.where(is_first, tile, tile + 1 if block.reverse else tile - 1)
    chunks = pl.ds(other * grid.chunks, grid.chunks)
    h = refs.streams[2][block.row, chunks, _border(grid, block.reverse), block.lanes]
    return jnp.where(is_first, refs.start[block.row, :, block.lanes], h.astype(jnp.float32))


def _store_chunk_edges(grid, refs, slot, outside, reverse):
    """Store h at the chunks' borders so that each chunk finds that of the chunk before one row further."""
    own = refs.slots[2][slot, :, _border(grid, reverse)].astype(jnp.float32)
    refs.edges[pl.ds(0 if reverse else grid.chunks, grid.chunks)] = own
    refs.edges[pl.ds(grid.chunks if reverse else 0, grid.chunks)] = outside


def _store_chunk_transfers(grid, scan_pass, refs, steps, descending):
    """Compute each chunk's transfer of the state that enters it, h -> P h + H, and store it for all."""

    def transfer(first, is_last, carried):
        product, state = carried
        for _, decay, new, _ in steps(first):
            product, state = decay * product, scan_pass.advance(state, decay, new)
        return product, state

    transfers = _for_each_group(grid, descending, transfer, _identity_transfer(grid))
    for which, value in enumerate(transfers):
        refs.exchange[which, pl.ds(grid.chunks, grid.chunks)] = value


def _entering_states(grid, refs, carry, descending):
    """Return the state that enters each chunk, and the state that leaves the tile, known to all.

    On either side of the transfers are as many identities. So the thread of chunk k finds in the rows from
    k + 1 on first identities and then the chunks before its own, and in those from k + chunks on its own,
    those after it, and identities again: all threads read as many rows, each from its own view.
    """
    chunks = grid.chunks

    def through(state, offsets):
        for offset in offsets:
            rows = pl.ds(offset, chunks)
            state = refs.exchange[0, rows] * state + refs.exchange[1, rows]
        return state

    if descending:
        entering = through(carry, range(2 * chunks - 1, chunks, -1))
        return entering, through(entering, range(chunks, 0, -1))
    entering = through(carry, range(1, chunks))
    return entering, through(entering, range(chunks, 2 * chunks))
