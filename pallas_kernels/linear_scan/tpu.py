"""linear_scan for TPUs, in Mosaic: time chunks on the sublanes, three and five memory accesses per element.

The arrays stay [batch, length, channels]; a grid step holds a block of time steps of some channels. On a
TPU, 8 neighbouring rows of 128 channels share a register, so a recurrence along them uses an eighth of it.
So each block is cut into 8 time chunks that run in parallel. A load with a stride of one chunk brings row t
of every chunk into one register. A first pass computes the effect of each chunk on the state that enters
it, h -> P h + H (Blelloch 1990, section 1.4). Three shifted steps over the 8 sublanes, and the state of the
block before, give the state that enters each chunk. A second pass computes every h from it.

A stride of a multiple of 8 rows would load several rows from one memory bank. So the kernel first copies
the block, as float32, to scratch memory with one more row per chunk: an odd stride costs one load. The
reset flags of 16 rows are the bits of one scalar and take no vector memory.

The gradient is the same recurrence in the other direction, g[t] = dh[t] + a[t+1] g[t+1], dx = g,
da[t] = g[t] h[t-1] (Martin and Cundy 2018, section 2.2), in one kernel. It carries a[t] g[t], so a is not
shifted. It also reads 16 rows of h of the neighbouring block.
"""

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Float

from pallas_kernels.linear_scan.padding import crop_channels, pad_channels, pad_length
from pallas_kernels.linear_scan.tpu_call import LENGTH_UNIT, Interpret, call_kernel, make_grid, pack_resets
from pallas_kernels.linear_scan.tpu_chunks import (
    CHUNKS,
    LANES,
    TILE,
    channel_groups,
    for_each_tile,
    gradient_rows,
    not_reset_mask,
    rows_of,
    scan_rows,
    zero_at_resets,
)


def suits(shape: tuple[int, ...], direction: str) -> bool:
    """Return whether a call needs no padding: length and channels per direction are multiples of 128."""
    _, length, channels = shape
    return length % LENGTH_UNIT == 0 and channels % _channels_unit(direction) == 0


def forward(
    a: Float[Array, "batch length channels"],
    x: Float[Array, "batch length channels"],
    h0: Float[Array, "batch channels"],
    *,
    resets: tuple[Bool[Array, "batch length"], ...] | None,
    direction: str,
    interpret: Interpret = False,
) -> Float[Array, "batch length channels"]:
    """Return h in the type of `x`.

    Args:
        a: the decays, float32 or bfloat16. Unsuitable sizes are padded, which copies every operand.
        x: the addends, float32 or bfloat16.
        h0: the state before the first step in reading order.
        resets: for each direction, the steps where the decay counts as zero; or None.
        direction: "forward", "reverse" or "both".
        interpret: whether to run in the TPU interpreter, slowly, on any platform; or its parameters.
    """
    _, length, channels = a.shape
    halves = 2 if direction == "both" else 1
    # Padding with a = 1 and x = 0 leaves the state unchanged, so it can come first in reading order.
    a, x, h0 = _padded(a, halves, 1.0), _padded(x, halves, 0.0), pad_channels(h0, halves, LANES)
    grid = make_grid(a.shape, jnp.promote_types(a.dtype, x.dtype), direction, interpret)
    (h,) = call_kernel(
        grid,
        _forward_kernel,
        pack_resets(grid, resets),
        (("block", a), ("block", x), ("row", h0.astype(jnp.float32))),
        (("block", x.dtype),),
        scratch_arrays=2,
        reverse_time=False,
    )
    return crop_channels(h[:, :length], halves, channels)


def backward(
    a: Float[Array, "batch length channels"],
    h: Float[Array, "batch length channels"],
    h0: Float[Array, "batch channels"],
    dh: Float[Array, "batch length channels"],
    *,
    resets: tuple[Bool[Array, "batch length"], ...] | None,
    direction: str,
    interpret: Interpret = False,
) -> tuple[
    Float[Array, "batch length channels"],
    Float[Array, "batch length channels"],
    Float[Array, "batch channels"],
]:
    """Return (da, dx, dh0) for the cotangent `dh` of h; the other arguments are as for `forward`."""
    _, length, channels = a.shape
    halves = 2 if direction == "both" else 1
    a, dh, h0 = _padded(a, halves, 1.0), _padded(dh, halves, 0.0), pad_channels(h0, halves, LANES)
    h = _padded(h, halves, h0[:, None])
    grid = make_grid(a.shape, jnp.promote_types(a.dtype, h.dtype), direction, interpret)
    da, dx, dh0 = call_kernel(
        grid,
        _backward_kernel,
        pack_resets(grid, resets),
        (("block", a), ("block", h), ("edge", h), ("block", dh), ("row", h0.astype(jnp.float32))),
        (("block", a.dtype), ("block", h.dtype), ("row", jnp.dtype(jnp.float32))),
        scratch_arrays=3,
        reverse_time=True,
    )
    return (
        crop_channels(da[:, :length], halves, channels),
        crop_channels(dx[:, :length], halves, channels),
        crop_channels(dh0, halves, channels),
    )


def _channels_unit(direction):
    return 2 * LANES if direction == "both" else LANES


def _padded(values, halves, fill):
    return pad_length(pad_channels(values, halves, LANES), LENGTH_UNIT, fill)


def _copy_in(grid, ref, lanes, scratch, *, bits_ref=None, offset=0):
    """Copy channels of a block to scratch memory as float32, with zeros where the row's bit is set."""

    def copy(tile, scratch_row, carried):
        mask = not_reset_mask(bits_ref, tile)
        for k, lane in enumerate(lanes):
            value = ref[0, rows_of(tile), lane].astype(jnp.float32)
            scratch[k, pl.ds(scratch_row + offset, TILE)] = zero_at_resets(mask, value)
        return carried

    for_each_tile(grid.rows, copy)


def _copy_out(grid, scratch, lanes, ref, *, bits_ref=None):
    """Copy scratch memory to channels of a block, with zeros where the row's bit is set."""

    def copy(tile, scratch_row, carried):
        mask = not_reset_mask(bits_ref, tile)
        for k, lane in enumerate(lanes):
            value = scratch[k, pl.ds(scratch_row, TILE)]
            ref[0, rows_of(tile), lane] = zero_at_resets(mask, value).astype(ref.dtype)
        return carried

    for_each_tile(grid.rows, copy)


def _entering(grid, initial, carry_ref, first):
    """Return the state that enters the block: `initial`, or the last state of the block before it."""
    return [
        jnp.where(pl.program_id(2) == 0, initial[k], carry_ref[first + k]) for k in range(grid.interleaved)
    ]


def _forward_kernel(grid, bits_ref, inputs, outputs, scratch, *, reverse):
    a_ref, x_ref, h0_ref = inputs
    (h_ref,) = outputs
    carry_ref, a_rows, x_rows = scratch
    for first, lanes in channel_groups(grid):
        _copy_in(grid, a_ref, lanes, a_rows, bits_ref=bits_ref)
        _copy_in(grid, x_ref, lanes, x_rows)
        entering = _entering(grid, [h0_ref[0, :, lane] for lane in lanes], carry_ref, first)
        _, leaving = scan_rows(grid, a_rows, x_rows, entering, reverse=reverse)
        for k in range(grid.interleaved):
            carry_ref[first + k] = leaving[k]
        _copy_out(grid, x_rows, lanes, h_ref)


def _backward_kernel(grid, bits_ref, inputs, outputs, scratch, *, reverse):
    a_ref, h_ref, edge_ref, dh_ref, h0_ref = inputs
    da_ref, dx_ref, dh0_ref = outputs
    carry_ref, a_rows, g_rows, h_prev_rows = scratch
    # Forward, h[t-1] of step t is in row t of its chunk, below h[-1]. In reverse, h[t+1] is in row t + 1,
    # and the row after the chunk holds the first row of the next chunk.
    shift = 0 if reverse else 1
    last_step = pl.program_id(2) == grid.row_blocks - 1
    for first, lanes in channel_groups(grid):
        _copy_in(grid, a_ref, lanes, a_rows, bits_ref=bits_ref)
        _copy_in(grid, dh_ref, lanes, g_rows)
        _copy_in(grid, h_ref, lanes, h_prev_rows, offset=shift)
        for k, lane in enumerate(lanes):
            edge = edge_ref[0, :, lane].astype(jnp.float32)
            edge = jnp.where(last_step, h0_ref[0, :, lane], edge[:1] if reverse else edge[-1:])
            for chunk in range(CHUNKS):
                begin = chunk * grid.stride
                target = begin + grid.chunk if reverse else begin
                source = begin + grid.stride if reverse else begin - 1
                inside = 0 <= source < CHUNKS * grid.stride
                h_prev_rows[k, target : target + 1] = (
                    h_prev_rows[k, source : source + 1] if inside else edge
                )
        entering = _entering(
            grid, [jnp.zeros((1, LANES), jnp.float32)] * grid.interleaved, carry_ref, first
        )
        leaving = gradient_rows(grid, a_rows, g_rows, h_prev_rows, entering, reverse=reverse, shift=shift)
        _copy_out(grid, g_rows, lanes, dx_ref)
        _copy_out(grid, a_rows, lanes, da_ref, bits_ref=bits_ref)
        for k, lane in enumerate(lanes):
            carry_ref[first + k] = leaving[k]
            dh0_ref[0, :, lane] = leaving[k][:1]
