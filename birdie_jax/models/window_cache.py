"""The decoding cache of attention with a sliding window: a ring buffer of the window's size."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from birdie_jax.array_types import Activations, TokenIds
from birdie_jax.models.key_value_cache import Attended, continuing_tokens
from birdie_jax.models.layout import Layout


class WindowCache(NamedTuple):
    """The last tokens of the open sample of each row, of constant size.

    The token at position p of its sample is in slot p modulo the window. So the number of tokens determines
    the position of each slot, and which slots are still empty.

    Attributes:
        keys: the keys of the tokens, already rotated by their positions.
        values: the values of the tokens.
        tokens: the number of tokens of the open sample of each row; 0 if no sample is open.
    """

    keys: Float[Array, "rows window kv_heads width"]
    values: Float[Array, "rows window kv_heads width"]
    tokens: Int[Array, " rows"]

    @classmethod
    def empty(cls, shape: tuple[int, int, int, int], dtype: DTypeLike) -> "WindowCache":
        """Return an empty cache of `shape` [rows, window, kv_heads, width]."""
        return cls(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros(shape[:1], jnp.int32))

    @property
    def positions(self) -> Int[Array, "rows window"]:
        """The position of each slot's token within the open sample; negative for empty slots."""
        window = self.keys.shape[1]
        last = self.tokens[:, None] - 1
        return last - (last - jnp.arange(window, dtype=jnp.int32)) % window

    def extended(
        self,
        layout: Layout,
        mask: Bool[Array, "rows length length"],
        positions: TokenIds,
        key: Float[Array, "rows length kv_heads width"],
        value: Float[Array, "rows length kv_heads width"],
    ) -> tuple["WindowCache", Attended]:
        """Return the cache with the tokens of a call, and the tokens that they attend to.

        Args:
            layout: the bounds of the samples, and the skipped tokens, which the cache does not store.
            mask: which token of the call may attend to which.
            positions: the index of each token within its sample.
            key: the keys of the call, rotated by their positions.
            value: the values of the call.
        """
        after = self._after(layout, positions, key, value)
        if key.shape[1] == 1:
            # The token replaces the one that has left the window, so it attends to the whole ring.
            return after, Attended(after.keys, after.values, (after.positions >= 0)[:, None])
        window = self.keys.shape[1]
        held = self.positions[:, None]
        earlier = (held >= 0) & (positions[:, :, None] - held < window)
        earlier &= continuing_tokens(layout)[:, :, None]
        attended = Attended(
            jnp.concatenate([self.keys, key], axis=1),
            jnp.concatenate([self.values, value], axis=1),
            jnp.concatenate([earlier, mask], axis=2),
        )
        return after, attended

    def checked(self, y: Activations) -> Activations:
        """Return `y` unchanged: the cache always has room."""
        return y

    def _after(
        self,
        layout: Layout,
        positions: TokenIds,
        key: Float[Array, "rows length kv_heads width"],
        value: Float[Array, "rows length kv_heads width"],
    ) -> "WindowCache":
        """Return the cache after the last token that is not skipped."""
        window, length = self.keys.shape[1], key.shape[1]
        index = jnp.arange(length, dtype=jnp.int32)[None]
        skipped = jnp.zeros_like(layout.forward_reset) if layout.skipped is None else layout.skipped
        kept = length - jnp.sum(skipped, axis=1, keepdims=True, dtype=jnp.int32)

        def at_last(x: Int[Array, "rows length"]) -> Int[Array, "rows 1"]:
            return jnp.take_along_axis(x, jnp.maximum(kept - 1, 0), axis=1)

        begin = jax.lax.cummax(jnp.where(layout.forward_reset, index, -1), axis=1)
        opened, last = at_last(layout.segment_ids) > 0, at_last(positions)
        stays = (begin == at_last(begin)) & (index < kept) & opened & (last - positions < window)
        # Writes out of bounds are dropped.
        slots = jnp.where(stays, positions % window, window)
        store = jax.vmap(lambda ring, slot, new: ring.at[slot].set(new, mode="drop"))
        tokens = jnp.where(opened, last + 1, 0)
        return WindowCache(
            store(self.keys, slots, key.astype(self.keys.dtype)),
            store(self.values, slots, value.astype(self.values.dtype)),
            jnp.where(kept > 0, tokens, self.tokens[:, None])[:, 0],
        )
