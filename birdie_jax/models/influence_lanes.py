"""Scores in two steps, for loops over time on CPUs: a token's channels become a few numbers, and those one.

XLA reduces the last axis of an array in a loop one number after the other. The channels are therefore
folded into lanes within the loop, and the lanes into a score outside of it.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from birdie_jax.models.influence import TokenScores, relative_score

_LANES = 16


def number_of_lanes(channels: int) -> int:
    """Return into how many numbers the channels of a token are folded; it divides them."""
    return math.gcd(channels, _LANES)


def fold_channels(norm: str, influence: Float[Array, "*tokens channels"]) -> Float[Array, "*tokens lanes"]:
    """Return what of a token's influence by channel its score needs; `norm` is any but "entry"."""
    lanes = number_of_lanes(influence.shape[-1])
    parts = influence.reshape(*influence.shape[:-1], -1, lanes)
    if norm == "l2":
        return jnp.square(parts).sum(axis=-2)
    return (parts if norm == "signed" else jnp.abs(parts)).max(axis=-2)


def score_of_lanes(
    norm: str, folded: Float[Array, "rows length lanes"], whole: Float[Array, "rows 1 channels"] | None
) -> TokenScores:
    """Return the score of each token.

    Args:
        norm: one of `influence.NORMS` but "entry".
        folded: what `fold_channels` gave for each.
        whole: the sum of all tokens' influence, which the norm "relative" needs.
    """
    if norm == "l2":
        return jnp.sqrt(folded.sum(axis=-1))
    largest = folded.max(axis=-1)
    return largest if whole is None else relative_score(largest, whole)
