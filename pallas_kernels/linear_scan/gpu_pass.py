"""A pass of one block of the GPU kernel along time: read tiles, update the states, write tiles.

A block works independently of other blocks and warpgroups. These synchronise its 128 threads and the
asynchronous copies:
- a barrier for each slot, for tiles that are copied in;
- `wait_smem_to_gmem`, for results that are copied out;
- `commit_smem` (a fence and a barrier of the warpgroup), before a read or a copy of memory that the threads
  wrote, and before memory that they read is written or filled again.

Every value has one element per thread, [chunks, channels]; a step loads one row of every chunk.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.linear_scan.padding import round_up

# A block is a warpgroup of 128 threads with channels * chunks = 128. With one chunk, every thread scans its
# own channel. If that gives too few blocks to fill the chip, a block has fewer channels and more chunks.

THREADS = 128
WORD = 32
MULTIPROCESSORS = 132
MAX_CHUNKS = 8
TILE_BYTES = 16 * 1024
BYTES_IN_FLIGHT = 160 * 1024
RESULT_SLOTS = 2


class GpuGrid(NamedTuple):
    """The partition of a call into blocks and tiles.

    Attributes:
        direction: "forward", "reverse", or "both" (the second half of the channels in reverse).
        channels: the number of channels of a block.
        chunks: the number of time chunks of a tile, read in parallel.
        rows: the number of time steps of a chunk; a tile is `chunks * rows` steps.
        tiles: the number of tiles along time.
        slots: the number of tiles of each operand in shared memory.
        interpret: the argument `interpret` of `plgpu.kernel`.
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
        """The number of reset flag words of a chunk."""
        return self.rows // WORD

    @property
    def lanes(self) -> tuple[int, int]:
        """The shape of a value with one element per thread."""
        return (self.chunks, self.channels)


def parts_of(direction: str) -> int:
    """Return the number of parts into which a direction cuts the channels."""
    return 2 if direction == "both" else 1


def count_blocks(shape: tuple[int, ...], direction: str, chunks: int) -> int:
    """Return the number of blocks of a call."""
    batch, _, channels = shape
    parts = parts_of(direction)
    width = THREADS // chunks
    return batch * parts * (round_up(channels // parts, width) // width)


def choose_chunks(shape: tuple[int, ...], direction: str) -> int:
    """Return the number of time chunks that a block reads in parallel: 1, 2, 4 or 8.

    The rule doubles the chunks, and halves the channels of a block, while all blocks run at once, one on
    each of `MULTIPROCESSORS` (of an H100 or H200), and a chunk has at least one word of reset flags. A
    batch that fills the chip with one chunk per block keeps one chunk, because a chunked block does its
    arithmetic twice. A row of a tile has at least 16 channels: memory is read in units of 32 bytes, which
    are 16 bfloat16 values.
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

    A tile has the largest length up to `TILE_BYTES` that divides the sequence. All slots together take up
    to `BYTES_IN_FLIGHT`: a multiprocessor needs about 35 KiB in flight for full bandwidth. If there are
    more blocks than multiprocessors, both limits are halved, so two blocks share a multiprocessor.
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
    """The computation of a pass; all values are float32.

    Attributes:
        reverse_time: whether the pass visits time against the reading order, as for gradients; it then
            needs h of the previous step in reading order.
        advance: (state, decay, new) -> state after the step, affine in the state with slope `decay`.
        results: (state before the step, state after it, new, h of the previous step in reading order,
            clear) -> the values to write. `clear` is a function that sets a value to zero at resets.
    """

    reverse_time: bool
    advance: Callable
    results: Callable


class BlockIndices(NamedTuple):
    """The part of the arrays that a block computes.

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
    """Global memory, [batch, chunks, rows, channels], and shared memory, [slots, chunks, rows, channels].

    Attributes:
        streams: the sequences a, x, and h if `reverse_time`.
        flags: the words of reset flags, with words instead of rows; or None.
        start: the state before the first step, [batch, chunks, channels]; equal for every chunk.
        results: the sequences that the pass writes.
        end: the state after the last step if `reverse_time`, of the shape of `start`; else None.
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
    """Scan the channels of a block over all tiles."""
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
    """Set the layout of a loop's carry for the compiler; the interpreter has no layouts."""
    if grid.interpret is not None:
        return value
    return plgpu.layout_cast(value, plgpu.Layout.WG_STRIDED(grid.lanes, 1))


def _identity_transfer(grid):
    """Return the transfer (P, H) that leaves a state unchanged: 1 h + 0."""
    one, zero = jnp.ones(grid.lanes, jnp.float32), jnp.zeros(grid.lanes, jnp.float32)
    return _laid_out(grid, one), _laid_out(grid, zero)


def _for_each_group(grid, descending, function, carry):
    """Run `carry = function(first row, is last group, carry)` over the groups of rows of a chunk."""
    groups = grid.rows // UNROLLED

    def group(index, carry):
        first = UNROLLED * (groups - 1 - index if descending else index)
        return function(first, index == groups - 1, carry)

    return jax.lax.fori_loop(0, groups, group, carry)


def _steps(refs, slot, descending, first):
    """Return (row, decay, new, clear) for each step of a group, in the order of the pass."""
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
    """Return h of the step before each step of a group, for a pass in reverse time.

    The last of these h is in the next group. In the last group of a chunk it is outside the chunk, and its
    value is arbitrary. The last item returned is whether it is inside the chunk.
    """
    if reverse:
        rows, beyond = [first + k + 1 for k in range(UNROLLED - 1)], first + UNROLLED
    else:
        rows, beyond = [first + k - 1 for k in range(UNROLLED - 1, 0, -1)], first - 1
    rows.append(jnp.where(is_last, first, beyond))
    return [*(h[slot, :, t].astype(jnp.float32) for t in rows), jnp.logical_not(is_last)]


def _border(grid, reverse):
    """Return the last row of a chunk in reading order."""
    return 0 if reverse else grid.rows - 1


def _load_outside(grid, refs, block, tile):
    """Return h at the borders of the chunks of the tile before `tile` in reading order, or h0.

    Only the chunk next to `tile` needs its value; the other threads load one so all do the same.
    """
    is_first = tile == (grid.tiles - 1 if block.reverse else 0)
    other = jnp.where(is_first, tile, tile + 1 if block.reverse else tile - 1)
    chunks = pl.ds(other * grid.chunks, grid.chunks)
    h = refs.streams[2][block.row, chunks, _border(grid, block.reverse), block.lanes]
    return jnp.where(is_first, refs.start[block.row, :, block.lanes], h.astype(jnp.float32))


def _store_chunk_edges(grid, refs, slot, outside, reverse):
    """Store h at the borders of the chunks; one row further on is the border of the chunk before."""
    own = refs.slots[2][slot, :, _border(grid, reverse)].astype(jnp.float32)
    refs.edges[pl.ds(0 if reverse else grid.chunks, grid.chunks)] = own
    refs.edges[pl.ds(grid.chunks if reverse else 0, grid.chunks)] = outside


def _store_chunk_transfers(grid, scan_pass, refs, steps, descending):
    """Compute the transfer h -> P h + H of each chunk, and store it for all threads."""

    def transfer(first, is_last, carried):
        product, state = carried
        for _, decay, new, _ in steps(first):
            product, state = decay * product, scan_pass.advance(state, decay, new)
        return product, state

    transfers = _for_each_group(grid, descending, transfer, _identity_transfer(grid))
    for which, value in enumerate(transfers):
        refs.exchange[which, pl.ds(grid.chunks, grid.chunks)] = value


def _entering_states(grid, refs, carry, descending):
    """Return the state that enters each chunk, and the state that leaves the tile, on all threads.

    The transfers have `chunks` identities on both sides. So every thread reads the same number of rows. The
    thread of chunk k reads from row k + 1 identities and then the chunks before its own, and from row
    k + chunks its own chunk, the chunks after it, and identities.
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
