"""The influence of each token on Mamba-2's output at the anchor of its sample (Simba, eq. 4)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from birdie_jax.array_types import StateSequence, TokenMask
from birdie_jax.models.influence import InfluenceRequest, TokenScores, channel_score, score_of_parts
from birdie_jax.models.selective_influence import anchor_of, steps_to_anchor


class MatrixArrays(NamedTuple):
    """The arrays of h_t = exp(s_t A) h_{t-1} + s_t u_t B_t^T, y_t = h_t C_t; see `influence.ScoredArrays`.

    A head's decay is one number, so token t adds to each channel of y at the anchor T

        Delta y_T(t) = s_t u_t (C_T . B_t) exp(A (s_{t+1} + ... + s_T)).

    This is y before D u, the gate and the norm. With the readout "state", the P x N numbers that t adds to
    a head's state at T replace the product with C_T.

    Attributes:
        steps: s_t; in a bidirectional layer the second half of the heads runs in reverse, also in the other
            arrays.
        u: the input.
        A: the rate of each head, negative.
        B: the weights of the input, by groups of heads.
        C: the weights of the output, by groups of heads.
    """

    steps: Float[Array, "rows length heads"]
    u: Float[Array, "rows length heads P"]
    A: Float[Array, " heads"]
    B: Float[Array, "rows length groups N"]
    C: Float[Array, "rows length groups N"]

    def split_channels(self, parts: int) -> list["MatrixArrays"]:
        """Return the arrays of `parts` equal parts of the heads; all parts share a single group."""
        of_heads = [jnp.split(array, parts, axis=2) for array in (self.steps, self.u)]
        of_groups = [
            [array] * parts if array.shape[2] == 1 else jnp.split(array, parts, axis=2)
            for array in (self.B, self.C)
        ]
        rates = jnp.split(self.A, parts)
        return [MatrixArrays(*part) for part in zip(*of_heads, rates, *of_groups, strict=True)]

    def reversed_in_time(self) -> "MatrixArrays":
        """Return the arrays with the last token first."""
        steps, u, B, C = (array[:, ::-1] for array in (self.steps, self.u, self.B, self.C))
        return MatrixArrays(steps, u, self.A, B, C)

    def forward_score(self, request: InfluenceRequest, reset: TokenMask, anchors: TokenMask) -> TokenScores:
        """Return the score of each token, float32; see `influence.ScoredArrays`."""
        steps, u, A, B, C = (array.astype(jnp.float32) for array in self)
        shares = u.shape[2] // B.shape[2]
        entry = steps[..., None] * u
        if request.norm == "entry":
            rows = B.repeat(shares, axis=2)
            return _norm(jnp.linalg.norm(entry, axis=-1) * jnp.linalg.norm(rows, axis=-1))
        anchor, reached = anchor_of(reset, anchors)
        decay = jnp.exp(A * steps_to_anchor(steps, anchors)) * reached[..., None]
        if request.readout == "state":
            return _state_score(request.norm, entry * decay[..., None], B.repeat(shares, axis=2))
        read = jnp.take_along_axis(C, anchor[..., None, None], axis=1)
        weights = jnp.sum(B * read, axis=-1).repeat(shares, axis=2) * decay
        influence = entry * weights[..., None]
        return channel_score(request.norm, influence.reshape(*influence.shape[:2], -1))


def _norm(numbers: Float[Array, "rows length heads"]) -> TokenScores:
    return jnp.linalg.norm(numbers, axis=-1)


def _state_score(
    norm: str, entry: Float[Array, "rows length heads P"], B: Float[Array, "rows length heads N"]
) -> TokenScores:
    """Return the score from all numbers that a token adds to the states of the heads at the anchor."""

    def influence(weights: Float[Array, "rows length heads"]) -> StateSequence:
        found = entry * weights[..., None]
        return found.reshape(*found.shape[:2], -1)

    return score_of_parts(norm, influence, jnp.moveaxis(B, -1, 0))
