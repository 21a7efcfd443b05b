"""The influence of each token on what a recurrent layer gives at its sample's anchor (Simba, eq. 4).

With h_t = a_t h_{t-1} + x_t and y_T = o_T h_T, the part of y_T that token t brought in is, channel by
channel,

    Delta y_T(t) = o_T a_{t+1} ... a_T x_t,

whose sum over the tokens of a sample is y_T. The token's decay stays: it is what zeroing the entry x_t
changes, not what leaving out the step would. With g_T = o_T and g_t = a_{t+1} g_{t+1} it is g_t x_t, so
that all tokens take one scan in reverse.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from birdie_jax.array_types import StateSequence, TokenMask
from pallas_kernels.linear_scan import linear_scan

COLLECTION = "influence"
"""The collection of variables in which a layer that is asked for them leaves its scores."""

READOUTS = ("gated", "state")
NORMS = ("absolute", "signed", "l2", "entry")
DIRECTIONS = ("forward", "both")

TokenScores = Float[Array, "rows length"]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["anchors"],
    meta_fields=["readout", "norm", "directions"],
)
@dataclass(frozen=True)
class InfluenceRequest:
    """What a layer is asked to score.

    Attributes:
        anchors: whether a token is the one that its sample's tokens are scored against; one a sample.
        readout: "gated": o_T is the output gate at the anchor, as Mamba's C_T; "state": 1, for questions
            that come later.
        norm: how the channels of Delta y_T(t) become a number: the largest "absolute" value, the largest
            "signed" value, the "l2" norm; or "entry", the l2 norm of x_t alone, without decay and readout.
        directions: "forward": the channels that run forward, the only ones that bring anything to a later
            token; "both": the larger of that and the mirrored score of the reverse channels at the first
            token of the sample.
    """

    anchors: TokenMask
    readout: str = "gated"
    norm: str = "absolute"
    directions: str = "forward"


class RecurrenceArrays(NamedTuple):
    """The arrays of h_t = a_t h_{t-1} + x_t, y_t = o_t h_t.

    Attributes:
        decay: a_t; in a bidirectional layer its second half belongs to the channels that run in reverse.
        entry: x_t, likewise.
        gate: o_t, likewise; None where the layer has no output gate.
    """

    decay: StateSequence
    entry: StateSequence
    gate: StateSequence | None


def recurrence_influence(
    request: InfluenceRequest, recurrence: RecurrenceArrays, resets: tuple[TokenMask, ...]
) -> TokenScores:
    """Return the score of each token, float32; without meaning on padding.

    Args:
        request: what is asked for.
        recurrence: the arrays of the layer.
        resets: the resets of the forward channels, and of the reverse ones where there are any.
    """
    recurrence = jax.tree.map(lambda array: array.astype(jnp.float32), recurrence)
    halves = [
        jax.tree.map(lambda array, part=part: jnp.split(array, len(resets), axis=-1)[part], recurrence)
        for part in range(len(resets))
    ]
    forward = _direction_score(request, halves[0], resets[0], request.anchors)
    if request.directions == "forward" or len(resets) == 1:
        return forward
    mirrored, reset, first = jax.tree.map(lambda array: array[:, ::-1], (halves[1], resets[1], resets[0]))
    return jnp.maximum(forward, _direction_score(request, mirrored, reset, first)[:, ::-1])


def _direction_score(
    request: InfluenceRequest, recurrence: RecurrenceArrays, reset: TokenMask, anchors: TokenMask
) -> TokenScores:
    """Return the score by the channels that run forward in the given order."""
    decay, entry, gate = recurrence
    if request.norm == "entry":
        return jnp.linalg.norm(entry, axis=-1)
    readout = jnp.ones_like(entry) if gate is None or request.readout == "state" else gate
    passed_on = jnp.where(reset[..., None], 0.0, decay)
    to_the_left = jnp.concatenate([passed_on[:, 1:], jnp.zeros_like(passed_on[:, :1])], axis=1)
    reached = linear_scan(to_the_left, jnp.where(anchors[..., None], readout, 0.0), reverse=True)
    return channel_score(request.norm, reached * entry)


def channel_score(norm: str, influence: Float[Array, "rows length channels"]) -> TokenScores:
    """Return the number that stands for the channels of Delta y_T(t), by one of `NORMS` but "entry"."""
    if norm == "l2":
        return jnp.linalg.norm(influence, axis=-1)
    return jnp.max(jnp.abs(influence) if norm == "absolute" else influence, axis=-1)
