"""The influence of each token on what Mamba's scan gives at its sample's anchor (Simba, eq. 4)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from birdie_jax.array_types import StateSequence, TokenMask
from birdie_jax.models.influence import InfluenceRequest, TokenScores, channel_score
from pallas_kernels.linear_scan import linear_scan

# That many of the N states are computed in one pass over a layer's tokens.
_STATES_AT_A_TIME = 16


class SelectiveArrays(NamedTuple):
    """The arrays of h_t[n] = exp(s_t A[n]) h_{t-1}[n] + s_t B_t[n] u_t; see `influence.ScoredArrays`.

    All decays between t and the anchor T are those of one number a channel, the sum of the steps, so that

        Delta y_T(t) = s_t u_t sum_n C_T[n] B_t[n] exp(A[n] (s_{t+1} + ... + s_T)).

    That is y before D u and the gate, as in the paper. With the readout "state" the N numbers that t adds
    to each channel's state at T take the place of their sum.

    Attributes:
        steps: s_t; in a bidirectional layer the second half of the channels runs in reverse.
        u: the input of the scan, likewise.
        A: the rates, negative, likewise.
        B: the weights of the input.
        C: the weights of the output.
    """

    steps: StateSequence
    u: StateSequence
    A: Float[Array, "channels N"]
    B: Float[Array, "rows length N"]
    C: Float[Array, "rows length N"]

    def split_channels(self, parts: int) -> list["SelectiveArrays"]:
        """Return the arrays of `parts` equal parts of the channels, which share B and C."""
        sequences = zip(*(jnp.split(array, parts, axis=-1) for array in (self.steps, self.u)), strict=True)
        return [
            SelectiveArrays(steps, u, A, self.B, self.C)
            for (steps, u), A in zip(sequences, jnp.split(self.A, parts), strict=True)
        ]

    def reversed_in_time(self) -> "SelectiveArrays":
        """Return the arrays with the last token first."""
        steps, u, B, C = (array[:, ::-1] for array in (self.steps, self.u, self.B, self.C))
        return SelectiveArrays(steps, u, self.A, B, C)

    def forward_score(self, request: InfluenceRequest, reset: TokenMask, anchors: TokenMask) -> TokenScores:
        """Return the score of each token, float32; nothing N times as wide as the input is in memory."""
        steps, u, A, B, C = (array.astype(jnp.float32) for array in self)
        entry = steps * u
        if request.norm == "entry":
            return jnp.linalg.norm(entry, axis=-1) * jnp.linalg.norm(B, axis=-1)
        elapsed = _steps_to_anchor(steps, anchors)
        anchor, reached = _anchor_of(reset, anchors)
        weights = B * reached[..., None]
        if request.readout == "state":
            return _state_score(request.norm, entry, elapsed, A, weights)
        weights *= jnp.take_along_axis(C, anchor[..., None], axis=1)

        def add_state(total, state):
            rate, weight = state
            return total + weight[..., None] * jnp.exp(rate * elapsed), None

        total, _ = jax.lax.scan(
            add_state,
            jnp.zeros_like(elapsed),
            (A.T, jnp.moveaxis(weights, -1, 0)),
            unroll=min(A.shape[1], _STATES_AT_A_TIME),
        )
        return channel_score(request.norm, entry * total)


def _state_score(
    norm: str,
    entry: StateSequence,
    elapsed: StateSequence,
    A: Float[Array, "channels N"],
    weights: Float[Array, "rows length N"],
) -> TokenScores:
    """Return the score by all numbers that a token adds to the state at its anchor."""

    def score_state(state):
        rate, weight = state
        return channel_score(norm, entry * (weight[..., None] * jnp.exp(rate * elapsed)))

    # The norms of the parts of a vector have the norm of the whole as theirs.
    return channel_score(
        norm, jnp.moveaxis(jax.lax.map(score_state, (A.T, jnp.moveaxis(weights, -1, 0))), 0, -1)
    )


def _steps_to_anchor(steps: StateSequence, anchors: TokenMask) -> StateSequence:
    """Return s_{t+1} + ... + s_T with T the first anchor at t or after it."""
    following = jnp.concatenate([steps[:, 1:], jnp.zeros_like(steps[:, :1])], axis=1)
    goes_on = jnp.broadcast_to(~anchors[..., None], steps.shape).astype(steps.dtype)
    return linear_scan(goes_on, following * goes_on, reverse=True)


def _anchor_of(reset: TokenMask, anchors: TokenMask) -> tuple[Int[Array, "rows length"], TokenMask]:
    """Return the place of the first anchor at or after each token, and whether its entry gets there."""
    length = anchors.shape[1]
    place = jnp.where(anchors, jnp.arange(length, dtype=jnp.int32)[None], length)
    place = jax.lax.cummin(place, axis=1, reverse=True)
    there = jnp.minimum(place, length - 1)
    resets = jnp.cumsum(reset, axis=1, dtype=jnp.int32)
    return there, (place < length) & (resets == jnp.take_along_axis(resets, there, axis=1))
