"""The launch of the GPU kernel: operands, results, shared memory, and the work of each block."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.linear_scan.gpu_pass import (
    RESULT_SLOTS,
    WORD,
    BlockIndices,
    GpuGrid,
    Pass,
    Refs,
    run_pass,
)
from pallas_kernels.linear_scan.padding import pad_length


def call_kernel(
    grid: GpuGrid,
    scan_pass: Pass,
    *,
    streams: tuple[jax.Array, ...],
    h0: Float[Array, "batch channels"],
    resets: tuple[Bool[Array, "batch length"], ...] | None,
    results: tuple[DTypeLike, ...],
) -> tuple[jax.Array, ...]:
    """Run a pass over padded operands.

    Args:
        grid: the grid of the call.
        scan_pass: the arithmetic of the pass.
        streams: a, x, and h if `reverse_time`; each [batch, length, channels].
        h0: the state before the first step in reading order.
        resets: for each direction, the steps where the decay counts as zero; or None.
        results: the dtypes of the values that `scan_pass.results` returns.

    Returns:
        The results, [batch, length, channels], and if `reverse_time` the last state, [batch, channels].
    """
    batch, length, channels = streams[0].shape
    chunked = (batch, grid.tiles * grid.chunks, grid.rows, channels)
    operands = [stream.reshape(chunked) for stream in streams]
    flags = [] if resets is None else [_pack_resets(grid, resets)]
    # Each chunk gets and returns a copy of the state, one element per thread.
    states = (batch, grid.chunks, channels)
    start = jnp.broadcast_to(h0.astype(jnp.float32)[:, None], states)
    shapes = [jax.ShapeDtypeStruct(chunked, dtype) for dtype in results]
    if scan_pass.reverse_time:
        shapes.append(jax.ShapeDtypeStruct(states, jnp.float32))
    directions = ("forward", "reverse") if grid.direction == "both" else (grid.direction,)

    def body(*refs, **scratch):
        refs = list(refs)
        given = Refs(
            streams=[refs.pop(0) for _ in operands],
            flags=refs.pop(0) if flags else None,
            start=refs.pop(0),
            results=[refs.pop(0) for _ in results],
            end=refs.pop(0) if scan_pass.reverse_time else None,
            **scratch,
        )
        row, column = jax.lax.axis_index("batch"), jax.lax.axis_index("channels")
        # Each direction is a separate program, so the offsets of neighbouring rows are constants.
        for part, direction in enumerate(directions):
            lanes = pl.ds(column * grid.channels, grid.channels)
            block = BlockIndices(row, row + part * batch, lanes, direction == "reverse")
            is_mine = (column * grid.channels >= channels // 2) == bool(part)
            run = partial(run_pass, grid, scan_pass, given, block)
            run() if len(directions) == 1 else pl.when(is_mine)(run)

    outputs = plgpu.kernel(
        body,
        out_type=shapes,
        grid=(batch, channels // grid.channels),
        grid_names=("batch", "channels"),
        scratch_types=_scratch(grid, scan_pass, streams, with_flags=bool(flags), results=results),
        # The pass has the barriers that it needs; the compiler would add two to every store. The semantics
        # are explicit because JAX 0.11 changed the default.
        compiler_params=plgpu.CompilerParams(
            lowering_semantics=plgpu.LoweringSemantics.Lane, unsafe_no_auto_barriers=True
        ),
        interpret=grid.interpret,
    )(*operands, *flags, start)
    wanted = [output.reshape(batch, length, channels) for output in outputs[: len(results)]]
    return (*wanted, *(end[:, 0] for end in outputs[len(results) :]))


def _scratch(grid, scan_pass, streams, *, with_flags, results):
    """Return the shared memory of a block, by field of `Refs`."""
    tile = (grid.chunks, grid.rows, grid.channels)
    scratch = {
        "slots": [plgpu.SMEM((grid.slots, *tile), stream.dtype) for stream in streams],
        "result_slots": [plgpu.SMEM((RESULT_SLOTS, *tile), dtype) for dtype in results],
        "barriers": plgpu.Barrier(num_arrivals=len(streams) + with_flags, num_barriers=grid.slots),
    }
    if with_flags:
        words = (grid.slots, grid.chunks, grid.words, grid.channels)
        scratch["flag_slots"] = plgpu.SMEM(words, jnp.int32)
    if grid.chunks > 1:
        scratch["exchange"] = plgpu.SMEM((2, 3 * grid.chunks, grid.channels), jnp.float32)
        if scan_pass.reverse_time:
            scratch["edges"] = plgpu.SMEM((2 * grid.chunks, grid.channels), jnp.float32)
    return scratch


def _pack_resets(
    grid: GpuGrid, resets: tuple[Bool[Array, "batch length"], ...]
) -> Int[Array, "flags chunks words channels"]:
    """Return int32 words of 32 reset flags, repeated for all channels of a block.

    Their shape is [directions * batch, all chunks, words of a chunk, channels of a block].
    """
    flags = pad_length(jnp.concatenate(resets), grid.chunks * WORD, False)
    flags = flags.reshape(flags.shape[0], -1, grid.words, 1, WORD).astype(jnp.uint32)
    words = jnp.sum(flags << jnp.arange(WORD, dtype=jnp.uint32), axis=-1)
    words = jnp.broadcast_to(words, (*words.shape[:-1], grid.channels))
    return jax.lax.bitcast_convert_type(words, jnp.int32)
