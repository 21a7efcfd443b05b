"""The grid of the TPU kernel of the selective scan, and its call. See `tpu`."""

import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike
from jaxtyping import Array, Int

from pallas_kernels.linear_scan.tpu_call import LENGTH_UNIT, MAX_BLOCK_ROWS, Interpret, TpuGrid
from pallas_kernels.linear_scan.tpu_chunks import LANES, TILE
from pallas_kernels.selective_scan.tpu_steps import SPAN

# The rows of a register. Each row is a group of 128 channels.
MAX_COLUMNS = 8


def make_grid(
    shape: tuple[int, ...],
    max_elements: int,
    direction: str,
    interpret: Interpret,
    max_columns: int = MAX_COLUMNS,
) -> TpuGrid:
    """Return the grid for padded sequences of `shape`, in blocks of `max_elements` where possible."""
    _, length, channels = shape
    groups = channels // LANES
    in_direction = groups // 2 if direction == "both" else groups
    columns = max(n for n in range(1, max_columns + 1) if in_direction % n == 0)
    max_rows = min(MAX_BLOCK_ROWS, max(LENGTH_UNIT, max_elements // (columns * LANES)))
    rows = max(n for n in range(LENGTH_UNIT, max_rows + 1, LENGTH_UNIT) if length % n == 0)
    return TpuGrid(direction, rows, columns, length // rows, groups // columns, interpret)


def call_kernel(
    grid: TpuGrid,
    kernel: Callable[..., None],
    bits: Int[Array, "flags row_blocks 1 tiles"] | None,
    operands: Sequence[tuple[str, str, jax.Array]],
    results: Sequence[tuple[str, str, DTypeLike]],
    *,
    scratch: dict[str, tuple[int, ...]],
    reverse_time: bool,
    operations: tuple[int, int],
) -> dict[str, jax.Array]:
    """Run kernel(grid, refs, reverse=...) over the grid, `refs` by name; return its results by name.

    The kinds of operands and results are:
    - "block": [batch, length, channels].
    - "columns": [batch, 2 N, length].
    - "partial": [column blocks, batch, 2 N, length], the terms of each block of channels in columns.
    - "matrix": [N, channels].
    - "vector": [1, channels].
    - "state": [batch, N, channels].
    - "row": [batch, 1, channels].
    - "kept": [batch, spans, N, column blocks, columns, 128].

    In the kernel, a matrix and a state have their channels folded as in "kept".

    Args:
        grid: the grid of the call.
        kernel: the body of a grid step.
        bits: the words of `linear_scan.tpu_call.pack_resets`, which the kernel gets as refs["bits"].
        operands: the (name, kind, array) of each operand, at least a block and a matrix.
        results: the (name, kind, dtype) of each result.
        scratch: the shape of each array in scratch memory, which keeps its values between blocks of time.
        reverse_time: whether to visit time blocks in the reverse of the reading order, as for gradients.
        operations: the multiplications and additions, and the exponentials, per state of an element.
    """
    arrays_of = {kind: array for _, kind, array in operands}
    (batch, length, channels), states = arrays_of["block"].shape, arrays_of["matrix"].shape[0]
    width = grid.columns * LANES

    def is_reverse(column):
        if grid.direction == "both":
            return column >= grid.column_blocks // 2
        return grid.direction == "reverse"

    def row_block(column, step):
        from_the_end = jnp.logical_xor(is_reverse(column), reverse_time)
        return jnp.where(from_the_end, grid.row_blocks - 1 - step, step)

    def words_of(b, c, t):
        first = jnp.where(is_reverse(c), batch, 0) if grid.direction == "both" else 0
        return first + b, row_block(c, t), 0, 0

    # For each kind: the shape of the array, the shape of a block, and the index of a block.
    kinds = {
        "block": (
            (batch, length, channels),
            (1, grid.rows, width),
            lambda b, c, t: (b, row_block(c, t), c),
        ),
        "columns": (
            (batch, 2 * states, length),
            (1, 2 * states, grid.rows),
            lambda b, c, t: (b, 0, row_block(c, t)),
        ),
        "partial": (
            (grid.column_blocks, batch, 2 * states, length),
            (1, 1, 2 * states, grid.rows),
            lambda b, c, t: (c, b, 0, row_block(c, t)),
        ),
        "matrix": (
            (states, grid.column_blocks, grid.columns, LANES),
            (states, 1, grid.columns, LANES),
            lambda b, c, t: (0, c, 0, 0),
        ),
        "vector": ((1, channels), (1, width), lambda b, c, t: (0, c)),
        "state": (
            (batch, states, grid.column_blocks, grid.columns, LANES),
            (1, states, 1, grid.columns, LANES),
            lambda b, c, t: (b, 0, c, 0, 0),
        ),
        "row": ((batch, 1, channels), (1, 1, width), lambda b, c, t: (b, 0, c)),
        "kept": (
            (batch, length // SPAN, states, grid.column_blocks, grid.columns, LANES),
            (1, grid.rows // SPAN, states, 1, grid.columns, LANES),
            lambda b, c, t: (b, row_block(c, t), 0, c, 0, 0),
        ),
    }
    specs = {kind: pl.BlockSpec(block, index) for kind, (_, block, index) in kinds.items()}
    names = [name for name, *_ in (*operands, *results)] + list(scratch)
    in_specs = [specs[kind] for _, kind, _ in operands]
    arrays = [array.reshape(kinds[kind][0]) for _, kind, array in operands]
    if bits is not None:
        names.insert(0, "bits")
        words = pl.BlockSpec((1, 1, 1, grid.rows // TILE), words_of, memory_space=pltpu.SMEM)
        in_specs, arrays = [words, *in_specs], [bits, *arrays]

    def body(*refs):
        run = functools.partial(kernel, grid, dict(zip(names, refs, strict=True)))
        if grid.direction == "both":
            reverse = is_reverse(pl.program_id(1))
            pl.when(reverse)(lambda: run(reverse=True))
            pl.when(jnp.logical_not(reverse))(lambda: run(reverse=False))
        else:
            run(reverse=grid.direction == "reverse")

    out_shape = [jax.ShapeDtypeStruct(kinds[kind][0], dtype) for _, kind, dtype in results]
    arithmetic, exponentials = (count * states * batch * length * channels for count in operations)
    moved = sum(array.nbytes for array in arrays)
    moved += sum(math.prod(out.shape) * jnp.dtype(out.dtype).itemsize for out in out_shape)
    outputs = pl.pallas_call(
        body,
        out_shape=out_shape,
        grid=(batch, grid.column_blocks, grid.row_blocks),
        in_specs=in_specs,
        out_specs=[specs[kind] for _, kind, _ in results],
        scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch.values()],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        cost_estimate=pl.CostEstimate(flops=arithmetic, bytes_accessed=moved, transcendentals=exponentials),
        interpret=pltpu.InterpretParams() if grid.interpret is True else grid.interpret,
    )(*arrays)
    return {
        name: output.reshape(batch, states, channels) if kind == "state" else output
        for (name, kind, _), output in zip(results, outputs, strict=True)
    }
