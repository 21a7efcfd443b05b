"""linear_scan for NVIDIA GPUs from Hopper on, in Mosaic GPU: three and five memory accesses an element.

A block of 128 threads walks along time with one channel a thread, the state in a register. Tiles of time
steps stream through shared memory: several are on their way in while one is read, and results leave behind
it (the asynchronous copies are the tensor memory accelerator's). All directions share one program: a block
whose channels are read in reverse takes tiles and rows from the end.

The gradient is the same walk the other way, g[t] = dh[t] + a[t+1] g[t+1], dx = g, da[t] = g[t] h[t-1]
(Martin and Cundy 2018, section 2.2); it carries a[t] g[t]. Of h it reads one row of the neighbouring tile
besides. The reset flags of 32 steps are the bits of one word.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.linear_scan.padding import crop_channels, pad_channels, pad_length

LANES = 128
WORD = 32
TILE_BYTES = 16 * 1024
BYTES_ON_THE_WAY = 128 * 1024
RESULT_SLOTS = 2


class Plan(NamedTuple):
    """How a call is cut; all static.

    Attributes:
        direction: "forward", "reverse", or "both" (the second half of the channels in reverse).
        rows: time steps of a tile.
        tiles: tiles along time.
        slots: tiles of each operand in shared memory.
        interpret: what `plgpu.kernel` takes under this name.
    """

    direction: str
    rows: int
    tiles: int
    slots: int
    interpret: object = None


def suits(shape: tuple[int, int, int], direction: str) -> bool:
    """Tell whether a call needs no padding: whole words in time, 128 channels a direction."""
    _, length, channels = shape
    return length % WORD == 0 and channels % (2 * LANES if direction == "both" else LANES) == 0


def forward(a, x, h0, *, resets, direction, interpret=None):
    """Return h in the type of `x`; arguments as for the TPU's `forward`."""
    _, length, channels = a.shape
    halves = 2 if direction == "both" else 1
    # Through padding with a = 1 and x = 0 the state passes unchanged, so that it may come first.
    a, x, h0 = _padded(a, halves, 1.0), _padded(x, halves, 0.0), pad_channels(h0, halves, LANES)
    plan = _make_plan(a, x, direction, operands=2, interpret=interpret)
    (h,) = _call(
        plan, _forward_step, against=False, streams=(a, x), h0=h0, resets=resets, results=(x.dtype,)
    )
    return crop_channels(h[:, :length], halves, channels)


def backward(a, h, h0, dh, *, resets, direction, interpret=None):
    """Return (da, dx, dh0) for the cotangent `dh` of h."""
    _, length, channels = a.shape
    halves = 2 if direction == "both" else 1
    a, dh, h0 = _padded(a, halves, 1.0), _padded(dh, halves, 0.0), pad_channels(h0, halves, LANES)
    h = _padded(h, halves, h0[:, None])
    plan = _make_plan(a, h, direction, operands=3, interpret=interpret)
    da, dx, dh0 = _call(
        plan,
        _backward_step,
        against=True,
        streams=(a, dh, h),
        h0=h0,
        resets=resets,
        results=(a.dtype, h.dtype),
    )
    return (
        crop_channels(da[:, :length], halves, channels),
        crop_channels(dx[:, :length], halves, channels),
        crop_channels(dh0, halves, channels),
    )


def _padded(values, halves, fill):
    return pad_length(pad_channels(values, halves, LANES), WORD, fill)


def _make_plan(a, x, direction, *, operands, interpret):
    item = jnp.promote_types(a.dtype, x.dtype).itemsize
    length = a.shape[1]
    most = TILE_BYTES // (LANES * item)
    rows = max(n for n in range(WORD, most + 1, WORD) if length % n == 0)
    slots = max(2, BYTES_ON_THE_WAY // (operands * rows * LANES * item))
    return Plan(direction, rows, length // rows, min(slots, length // rows), interpret)


def _pack_resets(resets):
    """Return int32 words of 32 reset flags each, [directions * batch, words]."""
    flags = pad_length(jnp.concatenate(resets), WORD, False)
    flags = flags.reshape(flags.shape[0], -1, WORD).astype(jnp.uint32)
    words = jnp.sum(flags << jnp.arange(WORD, dtype=jnp.uint32), axis=-1)
    return jax.lax.bitcast_convert_type(words, jnp.int32)


def _forward_step(state, rows, before, keep):
    """One step: rows are a and x; returns the state, and what is written."""
    decay, new = rows
    state = decay * keep * state + new
    return state, (state,)


def _backward_step(state, rows, before, keep):
    """One step against the recurrence: rows are a, dh; returns a g, and da and dx."""
    decay, cotangent = rows
    gradient = cotangent + state
    return decay * keep * gradient, (gradient * before * keep, gradient)


def _call(plan, step, *, against, streams, h0, resets, results):
    batch, length, channels = streams[0].shape
    count, words = len(streams), plan.rows // WORD
    bits = None if resets is None else _pack_resets(resets)

    def body(*refs):
        stream_refs, refs = refs[:count], refs[count:]
        h0_ref, refs = refs[0], refs[1:]
        bits_ref, refs = (None, refs) if bits is None else (refs[0], refs[1:])
        result_refs, refs = refs[: len(results)], refs[len(results) :]
        dh0_ref, refs = (refs[0], refs[1:]) if against else (None, refs)
        slots, result_slots, barriers = refs[:count], refs[count : count + len(results)], refs[-1]

        row, block = jax.lax.axis_index("batch"), jax.lax.axis_index("channels")
        lanes = pl.ds(block * LANES, LANES)
        middle = {"forward": channels, "reverse": 0, "both": channels // 2}[plan.direction]
        reverse = block * LANES >= middle
        descending = jnp.logical_xor(reverse, against)
        bits_row = row + jnp.where(reverse, batch, 0) if plan.direction == "both" else row

        def tile_at(count):
            return jnp.where(descending, plan.tiles - 1 - count, count)

        def fetch(number):
            slot = jax.lax.rem(number, plan.slots)
            times = pl.ds(tile_at(number) * plan.rows, plan.rows)
            for ref, shared in zip(stream_refs, slots, strict=True):
                plgpu.copy_gmem_to_smem(ref.at[row, times, lanes], shared.at[slot], barriers.at[slot])

        def run_tile(number, state):
            slot, result_slot = jax.lax.rem(number, plan.slots), jax.lax.rem(number, RESULT_SLOTS)
            tile = tile_at(number)
            flags = [
                jnp.int32(0) if bits_ref is None else bits_ref[bits_row, tile * words + word]
                for word in range(words)
            ]
            edge = None
            if against:
                # The row before the tile in reading order, which only the tile's last step needs.
                beside = jnp.where(reverse, (tile + 1) * plan.rows, tile * plan.rows - 1)
                inside = jnp.logical_and(beside >= 0, beside < length)
                beside_row = stream_refs[-1][row, jnp.clip(beside, 0, length - 1), lanes]
                edge = jnp.where(inside, beside_row.astype(jnp.float32), h0_ref[row, lanes])
            plgpu.barrier_wait(barriers.at[slot])
            plgpu.wait_smem_to_gmem((RESULT_SLOTS - 1) * len(results), wait_read_only=True)

            def run_step(within, state):
                t = jnp.where(descending, plan.rows - 1 - within, within)
                word = flags[0]
                for index in range(1, words):
                    word = jnp.where(t >= index * WORD, flags[index], word)
                is_reset = jax.lax.shift_right_logical(word, jax.lax.rem(t, WORD)) & 1
                keep = jnp.where(is_reset == 1, 0.0, 1.0).astype(jnp.float32)
                rows = [shared[slot, t].astype(jnp.float32) for shared in slots[:2]]
                before = None
                if against:
                    neighbour = jnp.where(reverse, t + 1, t - 1)
                    is_edge = within == plan.rows - 1
                    neighbour = jnp.where(is_edge, t, neighbour)
                    before = jnp.where(is_edge, edge, slots[2][slot, neighbour].astype(jnp.float32))
                state, written = step(state, rows, before, keep)
                for shared, value in zip(result_slots, written, strict=True):
                    shared[result_slot, t] = value.astype(shared.dtype)
                return state

            state = jax.lax.fori_loop(0, plan.rows, run_step, state)
            plgpu.commit_smem()
            times = pl.ds(tile * plan.rows, plan.rows)
            for shared, ref in zip(result_slots, result_refs, strict=True):
                plgpu.copy_smem_to_gmem(shared.at[result_slot], ref.at[row, times, lanes])
            pl.when(number + plan.slots < plan.tiles)(lambda: fetch(number + plan.slots))
            return state

        for number in range(plan.slots):
            fetch(jnp.int32(number))
        start = jnp.zeros((LANES,), jnp.float32) if against else h0_ref[row, lanes]
        if plan.interpret is None:
            # The compiler wants the layout of what a loop carries; the interpreter knows none.
            start = plgpu.layout_cast(start, plgpu.Layout.WG_STRIDED((LANES,), 1))
        state = jax.lax.fori_loop(0, plan.tiles, run_tile, start)
        plgpu.wait_smem_to_gmem(0)
        if against:
            dh0_ref[row, lanes] = state

    tile = (plan.rows, LANES)
    shapes = [jax.ShapeDtypeStruct((batch, length, channels), dtype) for dtype in results]
    if against:
        shapes.append(jax.ShapeDtypeStruct((batch, channels), jnp.float32))
    operands = [*streams, h0.astype(jnp.float32), *([] if bits is None else [bits])]
    return plgpu.kernel(
        body,
        out_type=shapes,
        grid=(batch, channels // LANES),
        grid_names=("batch", "channels"),
        scratch_types=[
            *(plgpu.SMEM((plan.slots, *tile), stream.dtype) for stream in streams),
            *(plgpu.SMEM((RESULT_SLOTS, *tile), dtype) for dtype in results),
            plgpu.Barrier(num_arrivals=count, num_barriers=plan.slots),
        ],
        interpret=plan.interpret,
    )(*operands)
