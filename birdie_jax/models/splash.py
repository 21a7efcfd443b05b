"""Splash attention, JAX's kernel for TPUs, with a mask for packed samples and their contexts.

The kernel computes its mask from an index for each query, and skips only blocks that a static mask
excludes. Within a sample a query sees all keys up to a last one: itself, or for a context token the end of
the context. So these last keys, computed from the layout, replace the kernel's own indices. The kernel's
segment numbers separate samples. No mask is written to memory.
"""

from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention
from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_kernel import SplashAttentionKernel
from jaxtyping import Array, Float, Int

from birdie_jax.array_types import TokenIds
from birdie_jax.models.axes import logical_shard_map
from birdie_jax.models.layout import Layout, own_segments

BLOCK_SIZES = (512, 256, 128)


def fits(length: int) -> bool:
    """Return whether sequences of `length` tokens need no padding for the kernel."""
    return length % BLOCK_SIZES[-1] == 0


def packed_splash_attention(
    query: Float[Array, "rows length heads width"],
    key: Float[Array, "rows length kv_heads width"],
    value: Float[Array, "rows length kv_heads width"],
    layout: Layout,
    *,
    bidirectional: bool,
    window: int = 0,
    interpret: bool = False,
) -> Float[Array, "rows length heads width"]:
    """Return attention under `birdie_jax.models.attention.packed_mask`, on the devices of the mesh.

    Rows are padded to a multiple of 128 tokens.

    Args:
        query: the queries; `heads / kv_heads` adjacent heads share a key and a value.
        key: the keys, not yet scaled.
        value: the values.
        layout: the samples and their contexts.
        bidirectional: whether the context attends to the whole context.
        window: the number of tokens that a token sees, itself included, to its left; 0 = the whole sample.
        interpret: whether to run in the interpreter, on any platform.

    Raises:
        ValueError: `bidirectional` has a window: the kernel supports one bound per query.
    """
    if bidirectional and window:
        raise ValueError(f"splash attention: found a window of {window} and bidirectional; allowed: 0")
    own_length, _, width = query.shape[1:]
    # Initialisation reads one token, and evaluation rows of any length.
    fill = -own_length % BLOCK_SIZES[-1]
    length = own_length + fill

    def filled(x: Array, value: int = 0) -> Array:
        return jnp.pad(x, ((0, 0), (0, fill), *[(0, 0)] * (x.ndim - 2)), constant_values=value)

    def attend_row(projected, segments, last):
        query, key, value = projected
        # A kernel for the heads of this device.
        one = _make_kernel(length, query.shape[1], bidirectional, window, interpret)
        if bidirectional:
            one = _with_last_keys(one, last - _offset(length))
        by_head = (jnp.swapaxes(x, 0, 1) for x in (query * width**-0.5, key, value))
        segment_ids = splash_attention.SegmentIds(segments, segments)
        attended = cast(Array, one(*by_head, segment_ids=segment_ids))
        return jnp.swapaxes(attended, 0, 1)

    # The tokens that fill the last block see one another, and no other token sees them.
    arguments = (
        tuple(map(filled, (query, key, value))),
        filled(own_segments(layout), -1 - own_length),
        filled(last_visible(layout), own_length),
    )
    attend = logical_shard_map(
        jax.vmap(attend_row),
        arguments,
        in_axes=[("rows", None, "inner"), ("rows",), ("rows",)],
        out_axes=("rows", None, "inner"),
    )
    return attend(*arguments)[:, :own_length]


def last_visible(layout: Layout) -> TokenIds:
    """Return the last token that each token may attend to: the end of its context, or itself."""
    length = layout.segment_ids.shape[1]
    index = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), layout.segment_ids.shape)
    context = layout.bidirectional & (layout.segment_ids > 0)
    # Sample numbers within contexts, so a run ends with the context or the sample.
    runs = jnp.where(context, layout.segment_ids, 0)
    ends = runs != jnp.concatenate([runs[:, 1:], jnp.zeros_like(runs[:, :1])], axis=1)
    end = jax.lax.cummin(jnp.where(ends, index, length), axis=1, reverse=True)
    return jnp.where(context, end, index)


def _offset(length: int) -> int:
    """Return a causal mask offset that excludes a single key, so the kernel skips no block."""
    return length - 2


def _make_kernel(
    length: int, heads: int, bidirectional: bool, window: int, interpret: bool
) -> SplashAttentionKernel:
    size = next(size for size in BLOCK_SIZES if length % size == 0)
    offset = _offset(length) if bidirectional else 0
    if window:
        # The kernel skips blocks that no window reaches.
        mask = splash_attention.LocalMask((length, length), (window - 1, 0), offset=0)
    else:
        mask = splash_attention.CausalMask((length, length), offset=offset)
    return splash_attention.make_splash_mha_single_device(
        mask=splash_attention.MultiHeadMask([mask] * heads),
        block_sizes=splash_attention.BlockSizes(
            **dict.fromkeys(("block_q", "block_kv", "block_kv_compute"), size),
            **dict.fromkeys(("block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute"), size),
            **dict.fromkeys(("block_q_dq", "block_kv_dq"), size),
        ),
        interpret=interpret,
    )


def _with_last_keys(kernel: SplashAttentionKernel, last: Int[Array, " length"]) -> SplashAttentionKernel:
    """Return `kernel` with the last key of each query instead of its own index."""
    infos = (kernel.fwd_mask_info, kernel.dq_mask_info, kernel.dkv_mask_info)
    replaced = tuple(info and info._replace(q_sequence=last) for info in infos)
    return type(kernel)(*cast(Any, replaced), **kernel.kwargs)
