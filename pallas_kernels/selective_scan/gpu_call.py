"""The launch of the GPU kernels of the selective scan: what goes in and out, and the blocks' parts."""

from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.selective_scan.gpu_grid import THREADS, TILE, GpuGrid
from pallas_kernels.selective_scan.gpu_tile import BlockIndices


def call_kernel(
    grid: GpuGrid,
    kernel: ModuleType,
    sequences: dict[str, jax.Array],
    others: dict[str, jax.Array],
    results: dict[str, jax.ShapeDtypeStruct],
    *,
    with_resets: bool,
) -> dict[str, jax.Array]:
    """Run a pass over padded operands, and return its results by name.

    Args:
        grid: the grid of the call.
        kernel: `gpu_forward` or `gpu_backward`: what a block has in shared memory, and what it does.
        sequences: what streams in by tiles, [batch, tiles, 16, channels].
        others: all else: the columns, A in base 2, D, the bias, states; see the kernels.
        results: the shapes and types of the results.
        with_resets: whether the columns tell what is kept.
    """
    batch, _, _, channels = sequences["u"].shape
    names = [*sequences, *others, *results]
    directions = grid.directions

    def body(*given, **scratch):
        refs = dict(zip(names, given, strict=True)) | scratch
        row, column = jax.lax.axis_index("batch"), jax.lax.axis_index("channels")
        # The directions are programs of their own, so that the order of the steps is constant.
        for part, direction in enumerate(directions):
            lanes = pl.ds(column * THREADS, THREADS)
            block = BlockIndices(row, lanes, column, part, direction == "reverse")
            run = partial(kernel.run, grid, refs, block, with_resets=with_resets)
            is_mine = (column * THREADS >= channels // 2) == bool(part)
            run() if len(directions) == 1 else pl.when(is_mine)(run)

    found = plgpu.kernel(
        body,
        out_type=list(results.values()),
        grid=(batch, channels // THREADS),
        grid_names=("batch", "channels"),
        scratch_types=kernel.scratch(grid, sequences, results),
        # Where a barrier is needed the pass has one. An exponential by itself has an error of 2 ** -22.
        compiler_params=plgpu.CompilerParams(
            lowering_semantics=plgpu.LoweringSemantics.Lane, unsafe_no_auto_barriers=True, approx_math=True
        ),
        interpret=grid.interpret,
    )(*sequences.values(), *others.values())
    return dict(zip(results, found, strict=True))


def tiled(grid: GpuGrid, array: jax.Array) -> jax.Array:
    """Return [batch, length, width] as [batch, tiles, 16, width]."""
    return array.reshape(array.shape[0], grid.tiles, TILE, array.shape[-1])


def shape_of(shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """Return the shape and type of a result."""
    return jax.ShapeDtypeStruct(shape, dtype)
