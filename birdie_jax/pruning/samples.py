"""Selects the tokens of packed rows that stay, and builds the rows that the next layer reads."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from birdie_jax.array_types import TokenIds, TokenMask

TokenNumbers = Float[Array, "rows length"]


class PackedTokens(NamedTuple):
    """The tokens that a layer reads, in rows.

    Attributes:
        index: the place of each token in the row of the first layer.
        segment_ids: the sample of each token, 0 on padding.
        bidirectional: whether a token belongs to a context.
        protected: whether a token is never dropped.
        sample_tokens: the original number of tokens in each token's sample; 0 on padding.
    """

    index: TokenIds
    segment_ids: TokenIds
    bidirectional: TokenMask
    protected: TokenMask
    sample_tokens: TokenIds

    @property
    def prunable(self) -> TokenMask:
        """Whether a token may be dropped."""
        return (self.segment_ids > 0) & ~self.protected


def whole_rows(segment_ids: TokenIds, bidirectional: TokenMask, protected: TokenMask) -> PackedTokens:
    """Return all tokens of packed rows, before any are dropped."""
    index = jnp.broadcast_to(jnp.arange(segment_ids.shape[1], dtype=jnp.int32)[None], segment_ids.shape)
    real = segment_ids > 0
    counts = jnp.where(real, samples_sum(real, segment_ids), 0)
    return PackedTokens(index, segment_ids, bidirectional, protected, counts)


def samples_sum(values: Shaped[Array, "rows length"], segment_ids: TokenIds) -> TokenIds:
    """Return, for each token, the sum of `values` over its sample, as int32."""

    def of_row(row: Int[Array, " length"], ids: Int[Array, " length"]) -> Int[Array, " length"]:
        sums = jax.ops.segment_sum(row, ids, num_segments=len(ids) + 1)
        return sums[ids]

    # Padding is segment 0; a row has at most as many samples as tokens.
    return jax.vmap(of_row)(values.astype(jnp.int32), segment_ids)


# A share in integers is four digits of 5 bits. The product of a digit and 2 ** 25 tokens fits in int32.
_DIGITS, _DIGIT_BITS = 4, 5
SHARE_UNITS = 2 ** (_DIGITS * _DIGIT_BITS)
"""A share is a number of these parts of 1, rounded up, so 0.7 of 5 tokens are not less than 3.5."""


def share_of(tokens: TokenIds, share: float | TokenNumbers) -> TokenIds:
    """Return a share of each number of tokens, at most 2 ** 25, rounded half up.

    The results equal those of `settings.kept_tokens`, which sizes rows, because both use integers. In
    float32 they would differ.
    """
    units = share * SHARE_UNITS
    whole = math.ceil(units) if isinstance(units, float) else jnp.ceil(units).astype(jnp.int32)
    rest = 0
    for place in range(_DIGITS - 1):
        digit = (whole >> place * _DIGIT_BITS) % 2**_DIGIT_BITS
        rest = (digit * tokens + rest) >> _DIGIT_BITS
    first = whole >> (_DIGITS - 1) * _DIGIT_BITS
    return (first * tokens + rest + 2 ** (_DIGIT_BITS - 1)) >> _DIGIT_BITS


def quotas(tokens: PackedTokens, share: float | TokenNumbers) -> TokenIds:
    """Return, for each token, the number of prunable tokens that its sample keeps.

    A sample keeps its share of all its original tokens, rounded. Protected tokens count, and always stay.
    """
    kept = share_of(tokens.sample_tokens, share)
    return jnp.maximum(kept - samples_sum(tokens.protected, tokens.segment_ids), 0)


def ranks(tokens: PackedTokens, score: TokenNumbers) -> TokenIds:
    """Return the rank of each prunable token within its sample, 0 for the highest score.

    If scores are equal, the later token ranks higher. Other tokens rank after all prunable ones.
    """

    def places(order: Int[Array, " length"], ids: Int[Array, " length"]) -> Int[Array, " length"]:
        place = jnp.zeros_like(order).at[order].set(jnp.arange(len(order), dtype=order.dtype))
        counts = jnp.zeros(len(order) + 1, order.dtype).at[ids].add(1)
        before = jnp.cumsum(counts) - counts
        return place - before[ids]

    order = jnp.lexsort((-tokens.index, -score, ~tokens.prunable, tokens.segment_ids), axis=-1)
    return jax.vmap(places)(order, tokens.segment_ids)


def kept_mask(tokens: PackedTokens, score: TokenNumbers, share: float | TokenNumbers) -> TokenMask:
    """Return the tokens that the next layer reads: protected ones, and the highest-scoring of each sample.

    Args:
        tokens: the tokens that this layer reads.
        score: the score of each token.
        share: the share of a sample's original tokens to keep: one number, or one per token.
    """
    chosen = tokens.prunable & (ranks(tokens, score) < quotas(tokens, share))
    return (tokens.segment_ids > 0) & (tokens.protected | chosen)


def gather_order(kept: TokenMask, count: int) -> Int[Array, "rows kept"]:
    """Return the places of `count` tokens per row: the kept tokens, in order, at the right end.

    Tokens that are not kept fill the left.
    """
    index = jnp.broadcast_to(jnp.arange(kept.shape[1], dtype=jnp.int32)[None], kept.shape)
    return jnp.lexsort((index, kept), axis=-1)[:, kept.shape[1] - count :]


def gather(tokens: PackedTokens, kept: TokenMask, order: Int[Array, "rows kept"]) -> PackedTokens:
    """Return the tokens at the places `order`; tokens that are not kept become padding."""
    taken = PackedTokens(*(jnp.take_along_axis(field, order, axis=1) for field in tokens))
    real = jnp.take_along_axis(kept, order, axis=1)
    return taken._replace(
        segment_ids=jnp.where(real, taken.segment_ids, 0),
        bidirectional=taken.bidirectional & real,
        protected=taken.protected & real,
        sample_tokens=jnp.where(real, taken.sample_tokens, 0),
    )
