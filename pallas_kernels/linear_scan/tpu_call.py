"""The partition of linear_scan into the grid steps of a TPU kernel, and the call. See `tpu`."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Int

from pallas_kernels.linear_scan.padding import pad_length
from pallas_kernels.linear_scan.tpu_chunks import CHUNKS, LANES, TILE

LENGTH_UNIT = CHUNKS * TILE
MAX_BLOCK_ROWS = 512
BLOCK_BYTES = 1 << 20
MAX_INTERLEAVED = 4


Interpret = bool | pltpu.InterpretParams
"""Whether to run in the TPU interpreter, on any platform; or the interpreter's parameters."""


class TpuGrid(NamedTuple):
    """The partition of a call into grid steps; all values are static.

    Attributes:
        direction: "forward", "reverse", or "both" (the second half of the channels in reverse).
        rows: the number of time steps of a block.
        columns: the number of groups of 128 channels of a block.
        row_blocks: the number of blocks along time.
        column_blocks: the number of blocks along the channels.
        interpret: whether to run in the TPU interpreter, on any platform; or the interpreter's parameters.
    """

    direction: str
    rows: int
    columns: int
    row_blocks: int
    column_blocks: int
    interpret: Interpret = False

    @property
    def chunk(self) -> int:
        """The number of time steps of a chunk."""
        return self.rows // CHUNKS

    @property
    def stride(self) -> int:
        """The number of rows of scratch memory from one chunk to the next; odd."""
        return self.chunk + 1

    @property
    def interleaved(self) -> int:
        """The number of channel groups that run in parallel, to hide the latency of the arithmetic."""
        return max(n for n in range(1, MAX_INTERLEAVED + 1) if self.columns % n == 0)


def make_grid(
    shape: tuple[int, ...],
    dtype: DTypeLike,
    direction: str,
    interpret: Interpret,
    *,
    block_bytes: int = BLOCK_BYTES,
    max_rows: int | None = None,
) -> TpuGrid:
    """Choose blocks of at most `block_bytes` and `max_rows`."""
    _, length, channels = shape
    most = min(max_rows or MAX_BLOCK_ROWS, MAX_BLOCK_ROWS)
    rows = max(n for n in range(LENGTH_UNIT, most + 1, LENGTH_UNIT) if length % n == 0)
    groups = channels // LANES
    max_columns = max(1, block_bytes // (rows * LANES * jnp.dtype(dtype).itemsize))
    in_direction = groups // 2 if direction == "both" else groups
    columns = max(n for n in range(1, max_columns + 1) if in_direction % n == 0)
    return TpuGrid(direction, rows, columns, length // rows, groups // columns, interpret)


def pack_resets(
    grid: TpuGrid, resets: tuple[Bool[Array, "batch length"], ...] | None
) -> Int[Array, "flags row_blocks 1 tiles"] | None:
    """Return int32 words of 16 reset flags each, [directions * batch, row blocks, 1, tiles], or None.

    Args:
        grid: the grid of the call.
        resets: the resets of each direction.
    """
    if resets is None:
        return None
    flags = pad_length(jnp.concatenate(resets), LENGTH_UNIT, False).reshape(
        -1, grid.row_blocks, 1, grid.rows // TILE, TILE
    )
    return jnp.sum(flags.astype(jnp.int32) << jnp.arange(TILE, dtype=jnp.int32), axis=-1)


def call_kernel(
    grid: TpuGrid,
    kernel: Callable[..., None],
    bits: Int[Array, "flags row_blocks 1 tiles"] | None,
    operands: Sequence[tuple[str, jax.Array]],
    results: Sequence[tuple[str, DTypeLike]],
    *,
    scratch_arrays: int,
    reverse_time: bool,
    transcendentals: int = 0,
) -> list[jax.Array]:
    """Run kernel(grid, bits_ref, inputs, outputs, scratch, reverse=...) over the grid; return its results.

    Kinds of operands and results: "block" [batch, length, channels]; "edge", the 16 rows next to the block
    in such an array, on the side that the recurrence comes from; "row" [batch, channels]; "boundary"
    [batch, row blocks, 8, channels], a row for each chunk; "channel" [channels].

    Args:
        grid: the grid of the call.
        kernel: the body of a grid step; its first scratch array is the carry from block to block.
        bits: the words of `pack_resets`.
        operands: the (kind, array) of each operand.
        results: the (kind, dtype) of each result.
        scratch_arrays: the number of copies of a block that the kernel needs in scratch memory.
        reverse_time: whether time blocks are visited against the reading order, as for gradients.
        transcendentals: the number of functions such as tanh that the kernel computes per element.
    """
    batch, length, channels = operands[0][1].shape

    def is_reverse(column):
        if grid.direction == "both":
            return column >= grid.column_blocks // 2
        return grid.direction == "reverse"

    def row_block(column, step):
        from_the_end = jnp.logical_xor(is_reverse(column), reverse_time)
        return jnp.where(from_the_end, grid.row_blocks - 1 - step, step)

    def edge_block(row, column, step):
        # At the end there are no such rows, and the kernel does not read them.
        block, tiles = row_block(column, step), grid.rows // TILE
        beside = jnp.where(is_reverse(column), (block + 1) * tiles, block * tiles - 1)
        return row, jnp.clip(beside, 0, grid.row_blocks * tiles - 1), column

    width = grid.columns * LANES
    specs = {
        "block": pl.BlockSpec((1, grid.rows, width), lambda b, c, t: (b, row_block(c, t), c)),
        "edge": pl.BlockSpec((1, TILE, width), edge_block),
        "row": pl.BlockSpec((1, 1, width), lambda b, c, t: (b, 0, c)),
        "boundary": pl.BlockSpec((1, 1, CHUNKS, width), lambda b, c, t: (b, row_block(c, t), 0, c)),
        "channel": pl.BlockSpec((1, 1, width), lambda b, c, t: (0, 0, c)),
    }
    shapes = {
        "block": (batch, length, channels),
        "edge": (batch, grid.row_blocks * TILE, channels),
        "row": (batch, 1, channels),
        "boundary": (batch, grid.row_blocks, CHUNKS, channels),
        "channel": (1, 1, channels),
    }
    in_specs = [specs[kind] for kind, _ in operands]
    arrays = [
        array if kind in ("block", "edge") else array.reshape(shapes[kind]) for kind, array in operands
    ]
    if bits is not None:

        def words_of(b, c, t):
            first = jnp.where(is_reverse(c), batch, 0) if grid.direction == "both" else 0
            return first + b, row_block(c, t), 0, 0

        in_specs.insert(0, pl.BlockSpec((1, 1, 1, grid.rows // TILE), words_of, memory_space=pltpu.SMEM))
        arrays.insert(0, bits)

    def body(*refs):
        bits_ref, refs = (None, refs) if bits is None else (refs[0], refs[1:])
        inputs, outputs = refs[: len(operands)], refs[len(operands) : len(operands) + len(results)]
        scratch = refs[len(operands) + len(results) :]
        run = functools.partial(kernel, grid, bits_ref, inputs, outputs, scratch)
        if grid.direction == "both":
            reverse = is_reverse(pl.program_id(1))
            pl.when(reverse)(lambda: run(reverse=True))
            pl.when(jnp.logical_not(reverse))(lambda: run(reverse=False))
        else:
            run(reverse=grid.direction == "reverse")

    moved = [(kind, array.dtype) for kind, array in operands] + list(results)
    scratch = pltpu.VMEM((grid.interleaved, CHUNKS * grid.stride, LANES), jnp.float32)
    outputs = pl.pallas_call(
        body,
        out_shape=[jax.ShapeDtypeStruct(shapes[kind], dtype) for kind, dtype in results],
        grid=(batch, grid.column_blocks, grid.row_blocks),
        in_specs=in_specs,
        out_specs=[specs[kind] for kind, _ in results],
        scratch_shapes=[
            pltpu.VMEM((grid.columns, CHUNKS, LANES), jnp.float32),
            *[scratch] * scratch_arrays,
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        cost_estimate=pl.CostEstimate(
            flops=(4 if reverse_time else 2) * batch * length * channels,
            bytes_accessed=sum(math.prod(shapes[kind]) * jnp.dtype(dtype).itemsize for kind, dtype in moved)
            + (0 if bits is None else bits.nbytes),
            transcendentals=transcendentals * batch * length * channels,
        ),
        interpret=pltpu.InterpretParams() if grid.interpret is True else grid.interpret,
    )(*arrays)
    return [out[:, 0] if kind == "row" else out for out, (kind, _) in zip(outputs, results, strict=True)]
