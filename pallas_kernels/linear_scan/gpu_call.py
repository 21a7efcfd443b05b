"""The launch of the GPU kernel: what goes in and out, shared memory, and the blocks' parts of the work."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.linear_scan.gpu_plan import RESULT_SLOTS, WORD, Plan
from pallas_kernels.linear_scan.gpu_walk import Block, Recurrence, Refs, walk
from pallas_kernels.linear_scan.padding import pad_length


def call_kernel(plan: Plan, recurrence: Recurrence, *, streams, h0, resets, results):
    """Run a pass over padded operands.

    Args:
        plan: how it is cut.
        recurrence: what it computes.
        streams: a, what is added, and with `against` h; [batch, length, channels].
        h0: [batch, channels].
        resets: bool [batch, length] for each direction, or None.
        results: the types of what `recurrence.results` returns.

    Returns:
        The results, [batch, length, channels], then with `against` the last state, [batch, channels].
    """
    batch, length, channels = streams[0].shape
    chunked = (batch, plan.tiles * plan.chunks, plan.rows, channels)
    operands = [stream.reshape(chunked) for stream in streams]
    flags = [] if resets is None else [_pack_resets(plan, resets)]
    # A state is given and returned once for every chunk, one element a thread.
    states = (batch, plan.chunks, channels)
    start = jnp.broadcast_to(h0.astype(jnp.float32)[:, None], states)
    shapes = [jax.ShapeDtypeStruct(chunked, dtype) for dtype in results]
    if recurrence.against:
        shapes.append(jax.ShapeDtypeStruct(states, jnp.float32))
    directions = ("forward", "reverse") if plan.direction == "both" else (plan.direction,)

    def body(*refs, **scratch):
        refs = list(refs)
        given = Refs(
            streams=[refs.pop(0) for _ in operands],
            flags=refs.pop(0) if flags else None,
            start=refs.pop(0),
            results=[refs.pop(0) for _ in results],
            end=refs.pop(0) if recurrence.against else None,
            **scratch,
        )
        row, column = jax.lax.axis_index("batch"), jax.lax.axis_index("channels")
        # The directions are programs of their own, so that the places of neighbouring rows are constants.
        for part, direction in enumerate(directions):
            lanes = pl.ds(column * plan.channels, plan.channels)
            block = Block(row, row + part * batch, lanes, direction == "reverse")
            is_mine = (column * plan.channels >= channels // 2) == bool(part)
            run = partial(walk, plan, recurrence, given, block)
            run() if len(directions) == 1 else pl.when(is_mine)(run)

    outputs = plgpu.kernel(
        body,
        out_type=shapes,
        grid=(batch, channels // plan.channels),
        grid_names=("batch", "channels"),
        scratch_types=_scratch(plan, recurrence, streams, with_flags=bool(flags), results=results),
        # Where a barrier is needed the walk has one; the compiler would put two around every store. The
        # semantics are named because JAX 0.11 changed which are the default.
        compiler_params=plgpu.CompilerParams(
            lowering_semantics=plgpu.LoweringSemantics.Lane, unsafe_no_auto_barriers=True
        ),
        interpret=plan.interpret,
    )(*operands, *flags, start)
    wanted = [output.reshape(batch, length, channels) for output in outputs[: len(results)]]
    return (*wanted, *(end[:, 0] for end in outputs[len(results) :]))


def _scratch(plan, recurrence, streams, *, with_flags, results):
    """Return the shared memory of a block, by the names of `Refs`."""
    tile = (plan.chunks, plan.rows, plan.channels)
    scratch = {
        "slots": [plgpu.SMEM((plan.slots, *tile), stream.dtype) for stream in streams],
        "result_slots": [plgpu.SMEM((RESULT_SLOTS, *tile), dtype) for dtype in results],
        "barriers": plgpu.Barrier(num_arrivals=len(streams) + with_flags, num_barriers=plan.slots),
    }
    if with_flags:
        words = (plan.slots, plan.chunks, plan.words, plan.channels)
        scratch["flag_slots"] = plgpu.SMEM(words, jnp.int32)
    if plan.chunks > 1:
        scratch["exchange"] = plgpu.SMEM((2, 3 * plan.chunks, plan.channels), jnp.float32)
        if recurrence.against:
            scratch["edges"] = plgpu.SMEM((2 * plan.chunks, plan.channels), jnp.float32)
    return scratch


def _pack_resets(plan, resets):
    """Return int32 words of 32 reset flags, the same for all channels of a block.

    Their shape is [directions * batch, chunks in all, words of a chunk, channels of a block].
    """
    flags = pad_length(jnp.concatenate(resets), plan.chunks * WORD, False)
    flags = flags.reshape(flags.shape[0], -1, plan.words, 1, WORD).astype(jnp.uint32)
    words = jnp.sum(flags << jnp.arange(WORD, dtype=jnp.uint32), axis=-1)
    words = jnp.broadcast_to(words, (*words.shape[:-1], plan.channels))
    return jax.lax.bitcast_convert_type(words, jnp.int32)
