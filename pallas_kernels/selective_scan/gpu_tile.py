"""The grid of the GPU kernel, and the operations of both passes on a tile of 16 steps. See `gpu`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.typing import DTypeLike

from pallas_kernels.linear_scan.padding import round_up

THREADS = 128
TILE = 16
# Two states have 64 sums over channels in a tile: the number of rows in the layout of a tensor core.
STATES_UNIT = 2
MAX_TILES = 8
# A block may have 227 KiB of shared memory. Forward uses half, so two blocks share a multiprocessor.
FORWARD_BYTES = 112 * 1024
BACKWARD_BYTES = 224 * 1024
MAX_SLOTS = 6
# A row of products starts eight banks after the previous one, so a load of eight rows uses each bank once.
PRODUCTS_WIDTH = THREADS + 8
SUMS = 2 * STATES_UNIT * TILE


class GpuGrid(NamedTuple):
    """The grid of a call.

    Attributes:
        direction: "forward", "reverse", or "both" (the second half of the channels in reverse).
        states: the padded number of states of a channel.
        columns: the width of a row of B, C and the reset flags.
        tiles: the number of tiles of 16 steps along time.
        block_tiles: the number of tiles between two states that the forward pass keeps for the gradient.
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
        """The number of blocks of time: at the start of each, the forward pass keeps the state."""
        return self.tiles // self.block_tiles

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions, each for an equal part of the channels."""
        return ("forward", "reverse") if self.direction == "both" else (self.direction,)


def make_grid(
    length: int, states: int, direction: str, *, dtype: DTypeLike, gated: bool, interpret: object
) -> GpuGrid:
    """Return the grid of a call, the same for both passes.

    Args:
        length: the number of time steps before padding.
        states: the padded number of states of a channel.
        direction: "forward", "reverse" or "both".
        dtype: the dtype of the sequences.
        gated: whether there is a gate z.
        interpret: the argument of `plgpu.kernel` of this name.
    """
    columns = round_up(2 * states + (2 if direction == "both" else 1), 4)
    tile = TILE * THREADS * jnp.dtype(dtype).itemsize
    row = states * THREADS * 4
    column_bytes = TILE * columns * 4
    forward_slot = (3 if gated else 2) * tile + column_bytes
    forward_slots = (FORWARD_BYTES - 2 * row - 2 * tile) // forward_slot
    # The products; A, and the cotangents of A and of the state; two slots of both rings of tiles.
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


# Terms of 2 artanh(s) = 2 (s + s^3 / 3 + s^5 / 5 + ...). For s <= 1/3 the rest is less than 1e-9.
TERMS = 8


class BlockIndices(NamedTuple):
    """The indices of the part of the arrays that a block computes.

    Attributes:
        row: the row of the batch.
        lanes: the slice of the channels.
        column: the index of the slice.
        part: the index of its direction in `GpuGrid.directions`.
        reverse: whether the block reads the sequence from its end.
    """

    row: Any
    lanes: Any
    column: Any
    part: int
    reverse: bool

    def tile_at(self, grid: GpuGrid, number: Any) -> Any:
        """Return the index of the `number`-th tile in reading order."""
        return grid.tiles - 1 - number if self.reverse else number

    def block_at(self, grid: GpuGrid, number: Any) -> Any:
        """Return the index of the `number`-th block of tiles in reading order."""
        return grid.blocks - 1 - number if self.reverse else number

    @property
    def steps(self) -> range:
        """The steps of a tile in reading order."""
        return range(TILE)[::-1] if self.reverse else range(TILE)


class Ring:
    """A ring of slots in shared memory, into which tiles of operands are copied in a fixed order."""

    def __init__(
        self,
        ring: str,
        grid: GpuGrid,
        block: BlockIndices,
        refs: dict[str, Any],
        *,
        names: tuple[str, ...],
        tile_of: Callable[[Any], Any],
    ) -> None:
        """Store the order. `start` begins the copies.

        Args:
            ring: the name of the ring.
            grid: the grid of the call.
            block: the part of the arrays.
            refs: all references by name; the ring uses RING_NAME for its slots, and RING_barriers.
            names: the names of the sequences.
            tile_of: maps the number of a copy to the index of its tile.
        """
        self._ring, self._grid, self._block, self._refs = ring, grid, block, refs
        self._names, self._tile_of = (*names, "columns"), tile_of
        self.slots = refs[f"{ring}_columns"].shape[0]

    def fetch(self, number: Any) -> None:
        """Start copy `number`. Its slot must be free."""
        tile, slot = self._tile_of(number), jax.lax.rem(number, self.slots)
        row, lanes = self._block.row, self._block.lanes
        for name in self._names:
            ref = self._refs[name]
            source = ref.at[row, tile] if name == "columns" else ref.at[row, tile, :, lanes]
            barrier = self._refs[f"{self._ring}_barriers"].at[slot]
            plgpu.copy_gmem_to_smem(source, self._refs[f"{self._ring}_{name}"].at[slot], barrier)

    def start(self, count: int) -> None:
        """Start the first copies of `count` in all, one per slot."""
        for number in range(min(self.slots, count)):
            self.fetch(jnp.int32(number))

    def wait(self, number: Any) -> Any:
        """Wait for copy `number`, and return its slot."""
        slot = jax.lax.rem(number, self.slots)
        plgpu.barrier_wait(self._refs[f"{self._ring}_barriers"].at[slot])
        return slot

    def refill(self, number: Any, count: Any) -> None:
        """Start the next copy into the slot of copy `number`, unless all `count` copies have started."""
        pl.when(number + self.slots < count)(lambda: self.fetch(number + self.slots))

    def rows(self, name: str, slot: Any) -> list:
        """Return the steps of a sequence in a slot, in float32, one channel per thread."""
        ref = self._refs[f"{self._ring}_{name}"]
        return [ref[slot, t].astype(jnp.float32) for t in range(TILE)]

    def weights(self, slot: Any, t: int, n: Any) -> tuple[Any, Any]:
        """Return the scalars B and C of step t for state n."""
        columns = self._refs[f"{self._ring}_columns"]
        return columns[slot, t, n], columns[slot, t, n + self._grid.states]

    def kept(self, slot: Any, t: int) -> Any:
        """Return 0 if step t is a reset, else 1, as a scalar."""
        return self._refs[f"{self._ring}_columns"][slot, t, 2 * self._grid.states + self._block.part]


class Steps:
    """The step sizes of a tile: raw, after the softplus, and times the input; one channel per thread."""

    def __init__(self, ring: Ring, slot: Any, bias: Any, *, with_resets: bool):
        """Load u and dt of the slot; `bias` is `dt_bias`, or None if dt is the step size itself."""
        self._ring, self._slot, self._with_resets = ring, slot, with_resets
        raw = ring.rows("dt", slot)
        self.dt = raw
        self.raw = raw
        if bias is not None:
            self.raw = [row + bias for row in raw]
            self.dt = [softplus(row) for row in self.raw]
        self.dtu = [dt * u for dt, u in zip(self.dt, ring.rows("u", slot), strict=True)]

    def decay(self, t: int, rate: Any) -> Any:
        """Return the decay at step t for a rate in base 2; 0 at a reset."""
        decay = jnp.exp2(self.dt[t] * rate)
        return decay * self._ring.kept(self._slot, t) if self._with_resets else decay

    def weights(self, t: int, n: Any) -> tuple[Any, Any]:
        """Return the scalars B and C of step t for state n."""
        return self._ring.weights(self._slot, t, n)


def softplus(x: Any) -> Any:
    """Return log(1 + exp(x)), accurate also where it is small: log(1 + e) = 2 artanh(e / (2 + e))."""
    e = jnp.exp(-jnp.abs(x))
    s = e / (2.0 + e)
    square = s * s
    total = square * (1.0 / (2 * TERMS - 1))
    for term in range(TERMS - 2, 0, -1):
        total = (total + 1.0 / (2 * term + 1)) * square
    return jnp.maximum(x, 0.0) + 2.0 * s * (total + 1.0)


def spread(grid: GpuGrid, value: Any) -> Any:
    """Return the value in the layout that loops carry, one channel per thread."""
    return with_layout(grid, value, plgpu.Layout.WG_STRIDED((THREADS,), 1))


def with_layout(grid: GpuGrid, value: Any, layout: Any) -> Any:
    """Return the value in a layout. The interpreter has no layouts."""
    return value if grid.interpret is not None else plgpu.layout_cast(value, layout)


def zeros(grid: GpuGrid) -> Any:
    """Return a zero for every thread."""
    return spread(grid, jnp.zeros((THREADS,), jnp.float32))


def for_each_state(grid: GpuGrid, body: Any) -> None:
    """Run body(n) for every state of a channel."""

    def run(n, _):
        body(n)
        return jnp.int32(0)

    jax.lax.fori_loop(0, grid.states, run, jnp.int32(0))


def load_rows(grid: GpuGrid, source: Any, target: Any) -> None:
    """Copy [N, channels of the block] from global to shared memory. Each thread copies its own channel."""

    def load(n):
        target[n] = source[n]

    for_each_state(grid, load)
