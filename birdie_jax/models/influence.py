"""The influence of each token on what a recurrent layer gives at its sample's anchor (Simba, eq. 4).

This module defines the request to a layer and stores its scores. recurrence_influence.py computes the
scores of a recurrence with one number a channel, and selective_influence.py those of Mamba, with N of them.
With h_t = a_t h_{t-1} + x_t and y_T = o_T h_T, token t adds to y_T, channel by channel,

    Delta y_T(t) = o_T a_{t+1} ... a_T x_t,

whose sum over the tokens of a sample is y_T. The token's decay stays: the score is the effect of zeroing
the entry x_t, not of leaving out the step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from birdie_jax.array_types import TokenMask

COLLECTION = "influence"
"""The collection of variables in which a layer stores its scores on request."""

READOUTS = ("gated", "state")
NORMS = ("absolute", "signed", "l2", "entry", "relative")
DIRECTIONS = ("forward", "both")

TokenScores = Float[Array, "rows length"]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["anchors"],
    meta_fields=["readout", "norm", "directions"],
)
@dataclass(frozen=True)
class InfluenceRequest:
    """A request for the scores of a layer.

    Attributes:
        anchors: whether a token is the anchor that scores the tokens of its sample; one a sample.
        readout: "gated": o_T is the output gate at the anchor, as Mamba's C_T; "state": 1, for questions
            that come later.
        norm: how the channels of Delta y_T(t) become a number: the largest "absolute" value, the largest
            "signed" value, the "l2" norm; or "entry", the l2 norm of x_t alone, without decay and readout;
            or "relative", the largest absolute value divided by the l2 norm of y_T (Simba, appendix A.2),
            for rows of one sample each.
        directions: "forward": the channels that run forward, the only ones that bring anything to a later
            token; "both": the larger of that and the mirrored score of the reverse channels at the first
            token of the sample.
    """

    anchors: TokenMask
    readout: str = "gated"
    norm: str = "absolute"
    directions: str = "forward"


@runtime_checkable
class ScoredArrays(Protocol):
    """The arrays of a recurrence that determine the influence of its tokens."""

    def split_channels(self, parts: int) -> Sequence["ScoredArrays"]:
        """Return the arrays of `parts` equal parts of the channels, one after the other."""
        ...

    def reversed_in_time(self) -> "ScoredArrays":
        """Return the arrays of the same channels with the last token first."""
        ...

    def forward_score(self, request: InfluenceRequest, reset: TokenMask, anchors: TokenMask) -> TokenScores:
        """Return the score of each token by channels that all run forward.

        Args:
            request: what is asked for; its anchors are not read.
            reset: where nothing enters a token from the one before it.
            anchors: the tokens that the others are scored against.
        """
        ...


def recurrence_influence(
    request: InfluenceRequest, recurrence: ScoredArrays, resets: tuple[TokenMask, ...]
) -> TokenScores:
    """Return the score of each token, float32; without meaning on padding.

    Args:
        request: what is asked for.
        recurrence: the arrays of the layer.
        resets: the resets of the forward channels, and of the reverse ones where there are any.
    """
    halves = recurrence.split_channels(len(resets))
    forward = halves[0].forward_score(request, resets[0], request.anchors)
    if request.directions == "forward" or len(resets) == 1:
        return forward
    reset, first = resets[1][:, ::-1], resets[0][:, ::-1]
    return jnp.maximum(forward, halves[1].reversed_in_time().forward_score(request, reset, first)[:, ::-1])


def leave_influence(
    module: nn.Module, request: InfluenceRequest, recurrence: ScoredArrays, resets: tuple[TokenMask, ...]
) -> None:
    """Store the score of each token in `COLLECTION`, under the module of the layer.

    Scores have no gradient: they say which tokens stay, and that is nothing to differentiate.
    """
    score = recurrence_influence(request, jax.lax.stop_gradient(recurrence), resets)
    module.sow(COLLECTION, "score", score, init_fn=lambda: score, reduce_fn=lambda _, new: new)


def channel_score(norm: str, influence: Float[Array, "*tokens channels"]) -> Float[Array, "*tokens"]:
    """Return the norm of the channels of Delta y_T(t), by one of `NORMS` but "entry"."""
    if norm == "l2":
        return jnp.linalg.norm(influence, axis=-1)
    if norm == "signed":
        return jnp.max(influence, axis=-1)
    largest = jnp.max(jnp.abs(influence), axis=-1)
    if norm == "absolute":
        return largest
    # Delta y_T(t) sums up to y_T over the tokens, and is 0 on padding.
    return relative_score(largest, influence.sum(axis=1, keepdims=True))


def relative_score(largest: TokenScores, whole: Float[Array, "rows 1 channels"]) -> TokenScores:
    """Return the largest part of each token as a share of the l2 norm of the whole, y_T."""
    return largest / jnp.maximum(jnp.linalg.norm(whole, axis=-1), jnp.finfo(jnp.float32).tiny)


# XLA reduces the last axis of an array in a loop one number after the other. The channels are therefore
# folded into lanes within the loop, and the lanes into a score outside of it.

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
