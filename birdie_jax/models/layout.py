"""From a Batch to what every sequence mixer obeys: where information may flow."""

from typing import NamedTuple

import jax.numpy as jnp

from birdie_jax.array_types import TokenIds, TokenMask


class Layout(NamedTuple):
    """Where information may flow within packed rows.

    Attributes:
        segment_ids: sample of each token, 0 on padding and spacing.
        forward_reset: nothing enters this token from the one on its left.
        reverse_reset: nothing enters this token from the one on its right.
    """

    segment_ids: TokenIds
    forward_reset: TokenMask
    reverse_reset: TokenMask


def packed_layout(segment_ids: TokenIds, bidirectional: TokenMask) -> Layout:
    """Derive the two resets of packed rows (Birdie paper, section 3.1 and appendix E.1).

    Forward, nothing enters the first token of a sample, or padding. In reverse, nothing enters a token
    that is not `bidirectional`, the last token of its sample, or padding; so the last context token may
    receive from the start token, and nothing of the target reaches the context.
    """
    padding = segment_ids == 0
    outside = jnp.zeros_like(segment_ids[:, :1])
    before = jnp.concatenate([outside, segment_ids[:, :-1]], axis=1)
    after = jnp.concatenate([segment_ids[:, 1:], outside], axis=1)
    return Layout(
        segment_ids=segment_ids,
        forward_reset=padding | (segment_ids != before),
        reverse_reset=padding | (segment_ids != after) | ~bidirectional,
    )


def causal_layout(rows: int, length: int) -> Layout:
    """Layout of `length` further tokens of one sample a row: the target while it is generated."""
    return Layout(
        segment_ids=jnp.ones((rows, length), jnp.int32),
        forward_reset=jnp.zeros((rows, length), bool),
        reverse_reset=jnp.ones((rows, length), bool),
    )
