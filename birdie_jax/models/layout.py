"""The layout of a Batch, which every sequence mixer obeys: where information may flow."""

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from birdie_jax.array_types import TokenIds, TokenMask
from birdie_jax.batch import Batch
from birdie_jax.models.influence import InfluenceRequest


class Layout(NamedTuple):
    """Where information may flow within packed rows.

    Attributes:
        segment_ids: the sample of each token, 0 on padding and spacing.
        forward_reset: whether nothing enters a token from the one on its left.
        reverse_reset: whether nothing enters a token from the one on its right.
        bidirectional: whether a token belongs to a context, whose tokens may attend to one another (E.1:
            attn_mask = 1).
        skipped: whether a token at the end of its row only fills it, so the cache after it is the one
            before it; None = no token does. Attention without a window cannot skip.
        influence: the requested scores, which a recurrent mixer stores in the collection of
            `models.influence`; None = none.
    """

    segment_ids: TokenIds
    forward_reset: TokenMask
    reverse_reset: TokenMask
    bidirectional: TokenMask
    skipped: TokenMask | None = None
    influence: InfluenceRequest | None = None

    def positions(self, open_tokens: Int[Array, " rows"] | None = None) -> TokenIds:
        """Return the index of each token within its sample, without meaning on padding.

        A sample begins at a forward reset. So a slice of a layout, or one that continues an earlier call,
        needs only `open_tokens`, the number of tokens of the open sample of each row before this call.
        """
        index = jnp.arange(self.segment_ids.shape[1], dtype=jnp.int32)[None]
        if open_tokens is None:
            open_tokens = jnp.zeros_like(self.segment_ids[:, 0])
        begin = jax.lax.cummax(jnp.where(self.forward_reset, index, -1), axis=1)
        return jnp.where(begin < 0, index + open_tokens[:, None], index - begin)


def batch_layout(batch: Batch) -> Layout:
    """Return the layout of the packed rows of a batch that is on the devices."""
    return packed_layout(cast(TokenIds, batch.segment_ids), cast(TokenMask, batch.bidirectional))


def packed_layout(segment_ids: TokenIds, bidirectional: TokenMask) -> Layout:
    """Derive the two resets of packed rows (Birdie paper, section 3.1 and appendix E.1).

    Forward, nothing enters the first token of a sample, or padding. In reverse, nothing enters a token
    that is not `bidirectional`, the last token of its sample, or padding; so the last context token may
    receive from the start token, and nothing of the target reaches the context.
    """
    padding = segment_ids == 0
    outside = jnp.zeros_like(segment_ids[:, :1])
    left = jnp.concatenate([outside, segment_ids[:, :-1]], axis=1)
    right = jnp.concatenate([segment_ids[:, 1:], outside], axis=1)
    return Layout(
        segment_ids=segment_ids,
        forward_reset=padding | (segment_ids != left),
        reverse_reset=padding | (segment_ids != right) | ~bidirectional,
        bidirectional=bidirectional,
    )


def causal_layout(rows: int, length: int) -> Layout:
    """Return the layout of `length` more tokens of one sample a row: the target while it is generated."""
    return Layout(
        segment_ids=jnp.ones((rows, length), jnp.int32),
        forward_reset=jnp.zeros((rows, length), bool),
        reverse_reset=jnp.ones((rows, length), bool),
        bidirectional=jnp.zeros((rows, length), bool),
    )


def continued_layout(
    lengths: Int[Array, " rows"], begins: Bool[Array, " rows"], bidirectional: TokenMask
) -> Layout:
    """Return the layout of rows of several lengths that continue or begin the samples of a cache.

    Nothing enters the last token of a row from its right: what follows it is read by another call.

    Args:
        lengths: the number of tokens of each row, from its left; the tokens after them are skipped.
        begins: whether a row begins a sample; the others continue those of the cache.
        bidirectional: whether a token belongs to a context.
    """
    index = jnp.arange(bidirectional.shape[1], dtype=jnp.int32)[None]
    given = index < lengths[:, None]
    return Layout(
        segment_ids=given.astype(jnp.int32),
        forward_reset=(index == 0) & begins[:, None],
        reverse_reset=(index >= lengths[:, None] - 1) | ~bidirectional,
        bidirectional=bidirectional & given,
        skipped=~given,
    )


def own_segments(layout: Layout) -> TokenIds:
    """Return sample numbers in which every padding token is a sample of its own, so it sees itself."""
    index = jnp.arange(layout.segment_ids.shape[1], dtype=jnp.int32)
    return jnp.where(layout.segment_ids > 0, layout.segment_ids, -1 - index)
