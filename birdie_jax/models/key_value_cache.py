"""The cache of attention without a window: the keys and values of all tokens so far."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from birdie_jax.array_types import Activations, TokenIds, TokenMask
from birdie_jax.models.layout import Layout


class Attended(NamedTuple):
    """The tokens that a call attends to: those of earlier calls, and its own.

    Attributes:
        keys: the keys, already rotated by their positions.
        values: the values.
        mask: which of these tokens each token of the call may attend to.
    """

    keys: Float[Array, "rows slots kv_heads width"]
    values: Float[Array, "rows slots kv_heads width"]
    mask: Bool[Array, "rows length slots"]


class KeyValueCache(NamedTuple):
    """The decoding cache, with room for a fixed number of tokens.

    Attributes:
        keys: the keys of all tokens so far, already rotated by their positions.
        values: the values of all tokens so far.
        visible: whether a token belongs to the open sample, which the next call may continue.
        used: the number of filled slots, the same in all rows.
        tokens: the number of tokens of the open sample of each row.
    """

    keys: Float[Array, "rows slots kv_heads width"]
    values: Float[Array, "rows slots kv_heads width"]
    visible: Bool[Array, "rows slots"]
    used: Int[Array, ""]
    tokens: Int[Array, " rows"]

    @classmethod
    def empty(cls, shape: tuple[int, int, int, int], dtype: DTypeLike) -> "KeyValueCache":
        """Return an empty cache of `shape` [rows, slots, kv_heads, width]."""
        return cls(
            keys=jnp.zeros(shape, dtype),
            values=jnp.zeros(shape, dtype),
            visible=jnp.zeros(shape[:2], bool),
            used=jnp.zeros((), jnp.int32),
            tokens=jnp.zeros(shape[:1], jnp.int32),
        )

    def extended(
        self,
        layout: Layout,
        mask: Bool[Array, "rows length length"],
        positions: TokenIds,
        key: Float[Array, "rows length kv_heads width"],
        value: Float[Array, "rows length kv_heads width"],
    ) -> tuple["KeyValueCache", Attended]:
        """Return the cache with the tokens of a call, and the tokens that they attend to.

        Args:
            layout: the bounds of the samples.
            mask: which token of the call may attend to which.
            positions: the index of each token within its sample.
            key: the keys of the call, rotated by their positions.
            value: the values of the call.

        Raises:
            ValueError: the call alone exceeds the size of the cache, or the layout skips tokens.
        """
        if layout.skipped is not None:
            raise ValueError("attention: found a layout with skipped tokens; allowed: one without")
        length, slots = key.shape[1], self.keys.shape[1]
        if length > slots:
            raise ValueError(f"attention: the cache has room for {slots} tokens; found a call of {length}")
        continues = continuing_tokens(layout)
        earlier = continues[:, :, None] & self.visible[:, None, :]
        mask = jax.lax.dynamic_update_slice(earlier, mask, (0, 0, self.used))
        extended = KeyValueCache(
            keys=jax.lax.dynamic_update_slice(self.keys, key, (0, self.used, 0, 0)),
            values=jax.lax.dynamic_update_slice(self.values, value, (0, self.used, 0, 0)),
            visible=jax.lax.dynamic_update_slice(
                self.visible & continues[:, -1:], _open_sample(layout), (0, self.used)
            ),
            used=self.used + length,
            tokens=positions[:, -1] + 1,
        )
        return extended, Attended(extended.keys, extended.values, mask)

    def checked(self, y: Activations) -> Activations:
        """Return `y`, or NaN if more tokens were read than the cache has slots."""
        # A device cannot raise an error, and NaN cannot pass for an answer.
        return jnp.where(self.used > self.keys.shape[1], jnp.nan, y)


def continuing_tokens(layout: Layout) -> TokenMask:
    """Return the tokens that continue the open sample of a cache: those before the first reset."""
    return ~jax.lax.associative_scan(jnp.logical_or, layout.forward_reset, axis=1)


def _open_sample(layout: Layout) -> TokenMask:
    """Return the tokens of the last token's sample; none if the last token is padding."""
    segments = layout.segment_ids
    return (segments == segments[:, -1:]) & (segments > 0)
