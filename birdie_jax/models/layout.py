"""The layout of a Batch: where information may flow in every sequence mixer."""

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
        forward_reset: whether no state enters a token from its left.
        reverse_reset: whether no state enters a token from its right.
        bidirectional: whether a token belongs to a context, where all tokens may attend to one another
            (E.1: attn_mask = 1).
        skipped: whether a token only fills the end of its row, so it leaves the cache unchanged; None = no
            token. Attention without a window cannot skip.
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
        """Return the index of each token within its sample; undefined on padding.

        A sample begins at a forward reset. A slice of a layout, or a layout that continues an earlier call,
        also needs `open_tokens`, the number of tokens of each row's open sample before this call.
        """
        index = jnp.arange(self.segment_ids.shape[1], dtype=jnp.int32)[None]
        if open_tokens is None:
            open_tokens = jnp.zeros_like(self.segment_ids[:, 0])
        begin = jax.lax.cummax(jnp.where(self.forward_reset, index, -1), axis=1)
        return jnp.where(begin < 0, index + open_tokens[:, None], index - begin)


def batch_layout(batch: Batch) -> Layout:
    """Return the layout of a batch of packed rows that is on the devices."""
    return packed_layout(cast(TokenIds, batch.segment_ids), cast(TokenMask, batch.bidirectional))


def packed_layout(segment_ids: TokenIds, bidirectional: TokenMask) -> Layout:
    """Derive the two resets of packed rows (Birdie paper, section 3.1 and appendix E.1).

    Forward, no state enters padding or the first token of a sample. In reverse, no state enters padding,
    the last token of a sample, or a token that is not `bidirectional`. So the last context token may
    receive state from the start token, and the target does not reach the context.
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
    """Return the layout of `length` more tokens of one sample per row, as in generation of a target."""
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

    No state enters the last token of a row from its right, because another call reads what follows.

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
    """Return sample numbers where every padding token is its own sample, so it sees itself."""
    index = jnp.arange(layout.segment_ids.shape[1], dtype=jnp.int32)
    return jnp.where(layout.segment_ids > 0, layout.segment_ids, -1 - index)
