"""What attention carries while it decodes: the keys and values of all tokens so far."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from birdie_jax.array_types import Activations, TokenIds, TokenMask
from birdie_jax.models.layout import Layout


class Attended(NamedTuple):
    """What the tokens of a call attend to: those of earlier calls, and one another.

    Attributes:
        keys: the keys, already turned to their positions.
        values: the values.
        mask: which of them each token of the call may attend to.
    """

    keys: Float[Array, "rows slots kv_heads width"]
    values: Float[Array, "rows slots kv_heads width"]
    mask: Bool[Array, "rows length slots"]


class KeyValueCache(NamedTuple):
    """What decoding carries from token to token: room for a fixed number of tokens.

    Attributes:
        keys: the keys of all tokens so far, already turned to their positions.
        values: the values of all tokens so far.
        visible: whether a token belongs to the sample that a next token may continue.
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
        """Return a cache of no tokens, of `shape` [rows, slots, kv_heads, width]."""
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
        """Return the cache with the tokens of a call, and what they attend to.

        Args:
            layout: the bounds of the samples.
            mask: which token of the call may attend to which.
            positions: the index of each token within its sample.
            key: the keys of the call, turned to their positions.
            value: its values.

        Raises:
            ValueError: the call alone has more tokens than the cache has room, or the layout skips tokens.
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
        """Return `y`, or NaN where there were more tokens than the cache has room."""
        # There is no error on the device: NaN is what cannot be taken for an answer.
        return jnp.where(self.used > self.keys.shape[1], jnp.nan, y)


def continuing_tokens(layout: Layout) -> TokenMask:
    """Return the tokens that continue the open sample of a cache: those before the first reset."""
    return ~jax.lax.associative_scan(jnp.logical_or, layout.forward_reset, axis=1)


def _open_sample(layout: Layout) -> TokenMask:
    """Return the tokens of the sample that the last token belongs to, if it is one."""
    segments = layout.segment_ids
    return (segments == segments[:, -1:]) & (segments > 0)
