"""The influence of each token on a recurrent layer's output at the anchor of its sample (Simba, eq. 4).

This module defines the request to a layer and stores its scores. recurrence_influence.py computes the
scores of a recurrence with one number per channel, and selective_influence.py those of Mamba, with N per
channel. With h_t = a_t h_{t-1} + x_t and y_T = o_T h_T, token t adds to each channel of y_T

    Delta y_T(t) = o_T a_{t+1} ... a_T x_t,

and the sum over the tokens of a sample is y_T. The token's decay remains: the score is the effect of
setting the entry x_t to zero, not of skipping the step.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from birdie_jax.array_types import TokenMask

COLLECTION = "influence"
"""The collection of variables where layers store their scores on request."""

READOUTS = ("gated", "state")
NORMS = ("absolute", "signed", "l2", "entry", "relative")
DIRECTIONS = ("forward", "both")

TokenScores = Float[Array, "rows length"]
Part = TypeVar("Part", bound=PyTree[Array])


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["anchors"],
    meta_fields=["readout", "norm", "directions"],
)
@dataclass(frozen=True)
class InfluenceRequest:
    """A request for the scores of a layer.

    Attributes:
        anchors: whether a token is the anchor that scores the tokens of its sample; one per sample.
        readout: the value of o_T. "gated": the output gate at the anchor, or Mamba's C_T; "state": 1, for
            questions that come later.
        norm: how the channels of Delta y_T(t) become a number: the largest "absolute" value; the largest
            "signed" value; the "l2" norm; "entry", the l2 norm of x_t without decay and readout; or
            "relative", the largest absolute value divided by the l2 norm of y_T (Simba, appendix A.2), for
            rows of one sample each.
        directions: "forward": the score of the forward channels, the only ones that carry information to
            later tokens; "both": the larger of this and the mirrored score of the reverse channels at the
            first token of the sample.
    """

    anchors: TokenMask
    readout: str = "gated"
    norm: str = "absolute"
    directions: str = "forward"


@runtime_checkable
class ScoredArrays(Protocol):
    """The arrays of a recurrence that determine the influence of tokens."""

    def split_channels(self, parts: int) -> Sequence["ScoredArrays"]:
        """Return the arrays of `parts` equal parts of the channels, in order."""
        ...

    def reversed_in_time(self) -> "ScoredArrays":
        """Return the arrays of the same channels with the last token first."""
        ...

    def forward_score(self, request: InfluenceRequest, reset: TokenMask, anchors: TokenMask) -> TokenScores:
        """Return the score of each token for channels that all run forward.

        Args:
            request: the request; its anchors are ignored.
            reset: whether no state enters a token from the previous one.
            anchors: the anchors of the samples.
        """
        ...


def recurrence_influence(
    request: InfluenceRequest, recurrence: ScoredArrays, resets: tuple[TokenMask, ...]
) -> TokenScores:
    """Return the score of each token, float32; undefined on padding.

    Args:
        request: the request.
        recurrence: the arrays of the layer.
        resets: the resets of the forward channels, then those of the reverse channels if there are any.
    """
    halves = recurrence.split_channels(len(resets))
    forward = halves[0].forward_score(request, resets[0], request.anchors)
    if request.directions == "forward" or len(resets) == 1:
        return forward
    reset, first = resets[1][:, ::-1], resets[0][:, ::-1]
    return jnp.maximum(forward, halves[1].reversed_in_time().forward_score(request, reset, first)[:, ::-1])


def sow_influence(
    module: nn.Module, request: InfluenceRequest, recurrence: ScoredArrays, resets: tuple[TokenMask, ...]
) -> None:
    """Store the score of each token in `COLLECTION`, under the module of the layer.

    Scores have no gradient, as they only select the tokens to keep.
    """
    score = recurrence_influence(request, jax.lax.stop_gradient(recurrence), resets)
    module.sow(COLLECTION, "score", score, init_fn=lambda: score, reduce_fn=lambda _, new: new)


def channel_score(norm: str, influence: Float[Array, "*tokens channels"]) -> Float[Array, "*tokens"]:
    """Return the norm over the channels of Delta y_T(t); `norm` is one of `NORMS` except "entry"."""
    if norm == "l2":
        return jnp.linalg.norm(influence, axis=-1)
    if norm == "signed":
        return jnp.max(influence, axis=-1)
    largest = jnp.max(jnp.abs(influence), axis=-1)
    if norm == "absolute":
        return largest
    # The sum of Delta y_T(t) over the tokens is y_T; it is 0 on padding.
    return relative_score(largest, influence.sum(axis=1, keepdims=True))


def score_of_parts(
    norm: str, influence: Callable[[Part], Float[Array, "rows length channels"]], parts: Part
) -> TokenScores:
    """Return the score of tokens with an influence in several parts, computed one part at a time.

    Args:
        norm: one of `NORMS` except "entry".
        influence: a part -> the influence of each token on the channels of this part.
        parts: arrays with the parts on their first axis.
    """

    def score_part(part: Part) -> tuple[TokenScores, Float[Array, "rows channels"]]:
        found = influence(part)
        return channel_score("absolute" if norm == "relative" else norm, found), found.sum(axis=1)

    scores, wholes = jax.lax.map(score_part, parts)
    if norm == "relative":
        whole = jnp.moveaxis(wholes, 0, 1).reshape(wholes.shape[1], 1, -1)
        return relative_score(scores.max(axis=0), whole)
    # The norm of the norms of a vector's parts is the norm of the whole vector.
    return channel_score(norm, jnp.moveaxis(scores, 0, -1))


def relative_score(largest: TokenScores, whole: Float[Array, "rows 1 channels"]) -> TokenScores:
    """Return the largest value of each token divided by the l2 norm of the whole, y_T."""
    return largest / jnp.maximum(jnp.linalg.norm(whole, axis=-1), jnp.finfo(jnp.float32).tiny)


# Inside a loop, XLA reduces the last axis of an array one number at a time. So the loop folds channels into
# lanes, and the lanes become a score outside of it.

_LANES = 16


def number_of_lanes(channels: int) -> int:
    """Return the number of lanes that the channels of a token fold into, a divisor of `channels`."""
    return math.gcd(channels, _LANES)


def fold_channels(norm: str, influence: Float[Array, "*tokens channels"]) -> Float[Array, "*tokens lanes"]:
    """Fold each token's influence from channels into lanes; `norm` is one of `NORMS` except "entry"."""
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
        norm: one of `NORMS` except "entry".
        folded: the result of `fold_channels` for each token.
        whole: the sum of the influence of all tokens, for the norm "relative"; None for others.
    """
    if norm == "l2":
        return jnp.sqrt(folded.sum(axis=-1))
    largest = folded.max(axis=-1)
    return largest if whole is None else relative_score(largest, whole)
