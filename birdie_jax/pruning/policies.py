"""Policies, which score tokens to decide which stay: influence and its baselines."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from birdie_jax.array_types import TokenIds
from birdie_jax.pruning.samples import PackedTokens, TokenNumbers, quotas, ranks, samples_sum
from birdie_jax.registry import Registry


class ScoredLayer(NamedTuple):
    """The inputs of a policy, from a layer; tokens are dropped after it.

    Attributes:
        tokens: the tokens that the layer reads.
        share: the share of each sample's original tokens that the next layer reads.
        scores: the layer's score of each token, by the norm of the policy; None if the policy has no norm.
        keys: a random key for each row and layer.
    """

    tokens: PackedTokens
    share: float | TokenNumbers
    scores: TokenNumbers | None
    keys: Key[Array, " rows"]


class Policy(NamedTuple):
    """A rule that chooses the tokens to keep.

    Attributes:
        score: ScoredLayer -> the score of each token, float32; tokens with the highest scores stay.
        norm: one of `models.influence.NORMS`, for the scores of every layer; "": the norm of the settings;
            None: the policy uses no scores.
    """

    score: Callable[[ScoredLayer], TokenNumbers]
    norm: str | None = None


def _layer_scores(layer: ScoredLayer) -> TokenNumbers:
    if layer.scores is None:
        raise ValueError("policy: the layer has no scores; allowed: a policy that requests them")
    return layer.scores


def _evenly(layer: ScoredLayer) -> TokenNumbers:
    """Return 1 for evenly spaced survivors, including the last token, and 0 for others."""
    tokens = layer.tokens
    position = _survivors(tokens) - 1 - ranks(tokens, tokens.index.astype(jnp.float32))
    count, quota = _survivors(tokens), quotas(tokens, layer.share)
    # Integer arithmetic takes exactly `quota` steps.
    taken = (position + 1) * quota // jnp.maximum(count, 1) > position * quota // jnp.maximum(count, 1)
    return taken.astype(jnp.float32)


def _survivors(tokens: PackedTokens) -> TokenIds:
    return samples_sum(tokens.prunable, tokens.segment_ids)


def _random(layer: ScoredLayer) -> TokenNumbers:
    """Return random numbers; each depends on the row's key and the token's original place in the row."""

    def of_row(key: jax.Array, index: Array) -> Array:
        return jax.vmap(lambda place: jax.random.uniform(jax.random.fold_in(key, place)))(index)

    return jax.vmap(of_row)(layer.keys, layer.tokens.index)


POLICIES: Registry[Policy] = Registry(
    "policy",
    influence=Policy(_layer_scores, norm=""),
    entry_norm=Policy(_layer_scores, norm="entry"),
    uniform=Policy(_evenly),
    random=Policy(_random),
    recency=Policy(lambda layer: layer.tokens.index.astype(jnp.float32)),
)

register_policy = POLICIES.register
