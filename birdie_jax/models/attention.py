"""The Transformer's sequence mixer: attention within packed samples, unmasked on the context."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from birdie_jax.array_types import Activations, TokenMask
from birdie_jax.models.layers import projection
from birdie_jax.models.layout import Layout, own_segments
from birdie_jax.models.rotary import rotate
from birdie_jax.models.splash import fits as splash_fits
from birdie_jax.models.splash import packed_splash_attention


class KeysAndValues(NamedTuple):
    """What decoding carries from token to token: room for a fixed number of tokens.

    Attributes:
        keys: of every token so far, already turned to its position.
        values: of every token so far.
        visible: true on the tokens of the sample that a next token may continue.
        used: int32, slots that are filled, the same in all rows.
        tokens: int32, tokens that the open sample of each row has.
    """

    keys: Float[Array, "rows slots kv_heads width"]
    values: Float[Array, "rows slots kv_heads width"]
    visible: Bool[Array, "rows slots"]
    used: Int[Array, ""]
    tokens: Int[Array, " rows"]


def packed_mask(layout: Layout, bidirectional: bool) -> Bool[Array, "rows length length"]:
    """Return which token (second axis) may attend to which (third).

    Within a sample, to itself and those before it, and, where `bidirectional`, to the whole context: since
    the context is the sample's beginning, only context tokens gain by that. The start token is no part of
    the context (Birdie paper, appendix E.1: attn_mask). Across samples, and to padding, nothing.
    """
    segments = own_segments(layout)
    index = jnp.arange(segments.shape[1])
    earlier = (index <= index[:, None])[None]
    if bidirectional:
        earlier = earlier | layout.bidirectional[:, None, :]
    return earlier & (segments[:, :, None] == segments[:, None, :])


def packed_attention(
    query: Float[Array, "rows length heads width"],
    key: Float[Array, "rows length kv_heads width"],
    value: Float[Array, "rows length kv_heads width"],
    layout: Layout,
    *,
    bidirectional: bool,
    implementation: str | None,
) -> Float[Array, "rows length heads width"]:
    """Return attention under `packed_mask`, by the `implementation` of `Attention`."""

    def splash(query, key, value, interpret=False):
        return packed_splash_attention(
            query, key, value, layout, bidirectional=bidirectional, interpret=interpret
        )

    def written_mask(query, key, value):
        mask = packed_mask(layout, bidirectional)[:, None]
        backend = implementation if implementation == "cudnn" else "xla"
        return jax.nn.dot_product_attention(query, key, value, mask=mask, implementation=backend)

    if implementation in ("splash", "splash_interpret"):
        return splash(query, key, value, interpret=implementation == "splash_interpret")
    if implementation is None and splash_fits(query.shape[1]):
        return jax.lax.platform_dependent(query, key, value, tpu=splash, default=written_mask)
    return written_mask(query, key, value)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions (Birdie paper, appendix A.1: those of Llama 2 Long).

        q_t, k_t, v_t = R_t W_q x_t, R_t W_k x_t, W_v x_t
        y_t = W_out sum_s softmax_s(q_t . k_s / sqrt(w)) v_s

    over the tokens s that `packed_mask` lets t see, for each head of width w; R_t turns by the position
    within the sample. Every `heads / kv_heads` queries share a key and a value.

    Attributes:
        features: width D of input and output.
        heads: query heads, a divisor of `features`; a head has an even number of channels.
        kv_heads: heads of keys and values, a divisor of `heads`.
        rope_base: base of the rotary frequencies.
        bidirectional: whether the context attends to the whole context.
        dtype: type of the matrix products; the softmax is in float32.
        implementation: "xla" or "cudnn" of `jax.nn.dot_product_attention`, "splash" (TPU), or
            "splash_interpret" (the same in the interpreter); None = the best one for the platform. Beside a
            cache, splash does not run, and "xla" does.
        output_scale: multiplies the initial size of W_out.
    """

    features: int
    heads: int
    kv_heads: int
    rope_base: float
    bidirectional: bool
    dtype: jnp.dtype
    implementation: str | None = None
    output_scale: float = 1.0

    @nn.compact
    def __call__(
        self, x: Activations, layout: Layout, cache: KeysAndValues | None = None
    ) -> tuple[Activations, KeysAndValues | None]:
        """Mix along the sequence.

        Args:
            x: normalised inputs.
            layout: the resets and the context, which keep samples, padding and the target's future apart.
            cache: keys and values of earlier parts of the same samples, or `empty_cache` to start one. If
                the call has more tokens than it has room left, every output is NaN.

        Returns:
            Outputs, and the cache that continues after the last token (None if none was given).

        Raises:
            ValueError: the call alone has more tokens than the cache has room.
        """
        width = self.features // self.heads
        query, key, value = (
            projection(heads * width, name, self.dtype)(x).reshape(*x.shape[:2], heads, width)
            for name, heads in (("query", self.heads), ("key", self.kv_heads), ("value", self.kv_heads))
        )
        positions = layout.positions(None if cache is None else cache.tokens)
        query, key = (rotate(part, positions, self.rope_base) for part in (query, key))
        if cache is None:
            mixed = packed_attention(
                query,
                key,
                value,
                layout,
                bidirectional=self.bidirectional,
                implementation=self.implementation,
            )
        else:
            mask = packed_mask(layout, self.bidirectional)
            backend = self.implementation if self.implementation == "cudnn" else "xla"
            cache, mask = _extended(cache, layout, mask, key=key, value=value, tokens=positions[:, -1] + 1)
            mixed = jax.nn.dot_product_attention(
                query, cache.keys, cache.values, mask=mask[:, None], implementation=backend
            )
        y = projection(self.features, "out", self.dtype, self.output_scale)(mixed.reshape(x.shape))
        if cache is not None:
            # There is no error on the device: NaN is what cannot be taken for an answer.
            y = jnp.where(cache.used > cache.keys.shape[1], jnp.nan, y)
        return y, cache

    def empty_cache(self, rows: int, length: int | None = None) -> KeysAndValues:
        """Return the cache from which `rows` new samples of at most `length` tokens start.

        Raises:
            ValueError: `length` is not given.
        """
        if length is None:
            raise ValueError(
                "empty_cache: attention needs the most tokens that a row will have; found None"
            )
        shape = (rows, length, self.kv_heads, self.features // self.heads)
        return KeysAndValues(
            keys=jnp.zeros(shape, self.dtype),
            values=jnp.zeros(shape, self.dtype),
            visible=jnp.zeros((rows, length), bool),
            used=jnp.zeros((), jnp.int32),
            tokens=jnp.zeros((rows,), jnp.int32),
        )


def _extended(
    cache: KeysAndValues, layout: Layout, mask: Array, *, key: Array, value: Array, tokens: Array
) -> tuple[KeysAndValues, Bool[Array, "rows length slots"]]:
    """Return the cache with the tokens of this call, and which of its slots each of them may attend to."""
    length, slots = key.shape[1], cache.keys.shape[1]
    if length > slots:
        raise ValueError(f"attention: the cache has room for {slots} tokens; found a call of {length}")
    # A token goes on with the open sample until the first reset of this call.
    continues = ~jax.lax.associative_scan(jnp.logical_or, layout.forward_reset, axis=1)
    earlier = continues[:, :, None] & cache.visible[:, None, :]
    mask = jax.lax.dynamic_update_slice(earlier, mask, (0, 0, cache.used))
    extended = KeysAndValues(
        keys=jax.lax.dynamic_update_slice(cache.keys, key, (0, cache.used, 0, 0)),
        values=jax.lax.dynamic_update_slice(cache.values, value, (0, cache.used, 0, 0)),
        visible=jax.lax.dynamic_update_slice(
            cache.visible & continues[:, -1:], _open_sample(layout), (0, cache.used)
        ),
        used=cache.used + length,
        tokens=tokens,
    )
    return extended, mask


def _open_sample(layout: Layout) -> TokenMask:
    """Return the tokens of the sample that the last token belongs to, if it is one."""
    segments = layout.segment_ids
    return (segments == segments[:, -1:]) & (segments > 0)
