"""The influence of each token on the output of Mamba's scan at its sample's anchor (Simba, eq. 4).

Accelerators use whole arrays, in one pass for all N states. CPUs use a loop over time, which reduces each
token's channels to a few numbers while they are in the processor's cache (see
`python -m benchmarks.pruned_prefill`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from birdie_jax.array_types import StateSequence, TokenMask
from birdie_jax.models.axes import logical_shard_map
from birdie_jax.models.influence import (
    InfluenceRequest,
    TokenScores,
    channel_score,
    fold_channels,
    number_of_lanes,
    score_of_lanes,
    score_of_parts,
)
from pallas_kernels.linear_scan import linear_scan

# The maximum number of the N states in one pass over a layer's tokens.
_STATES_AT_A_TIME = 16

# The number of tokens whose channels are folded at once. XLA compiles a loop over a few tokens into one
# function, but a loop over a whole row into a call of every operation for every token.
_CHUNK = 64

_ROWS = ("rows",)


class SelectiveArrays(NamedTuple):
    """The arrays of h_t[n] = exp(s_t A[n]) h_{t-1}[n] + s_t B_t[n] u_t; see `influence.ScoredArrays`.

    One number per channel, the sum of the steps, determines all decays between t and the anchor T, so

        Delta y_T(t) = s_t u_t sum_n C_T[n] B_t[n] exp(A[n] (s_{t+1} + ... + s_T)).

    This is y before D u and the gate, as in the paper. With the readout "state", the N numbers that t adds
    to each channel's state at T replace their sum.

    Attributes:
        steps: s_t; in a bidirectional layer the second half of the channels runs in reverse.
        u: the input of the scan, in the same order of channels.
        A: the rates, negative, in the same order.
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
        """Return the score of each token, float32, without arrays that are N times as wide as the input."""
        steps, u, A, B, C = (array.astype(jnp.float32) for array in self)
        entry = steps * u
        if request.norm == "entry":
            return jnp.linalg.norm(entry, axis=-1) * jnp.linalg.norm(B, axis=-1)
        if request.readout == "state":
            elapsed = steps_to_anchor(steps, anchors)
            _, reached = anchor_of(reset, anchors)
            return _state_score(request.norm, entry, elapsed, A, B * reached[..., None])
        return jax.lax.platform_dependent(
            SelectiveArrays(steps, u, A, B, C),
            reset,
            anchors,
            cpu=partial(_loops_of_devices, request.norm),
            default=partial(scores_by_arrays, request.norm),
        )


def scores_by_arrays(
    norm: str, arrays: SelectiveArrays, reset: TokenMask, anchors: TokenMask
) -> TokenScores:
    """Return the score of each token from whole arrays, for accelerators.

    Args:
        norm: one of `influence.NORMS` except "entry".
        arrays: the arrays of the layer, float32.
        reset: whether no state enters a token from the previous one.
        anchors: the anchors of the samples.
    """
    steps, u, A, B, C = arrays
    elapsed = steps_to_anchor(steps, anchors)
    anchor, reached = anchor_of(reset, anchors)
    weights = B * reached[..., None] * jnp.take_along_axis(C, anchor[..., None], axis=1)

    def add_state(total, state):
        rate, weight = state
        return total + weight[..., None] * jnp.exp(rate * elapsed), None

    total, _ = jax.lax.scan(
        add_state,
        jnp.zeros_like(elapsed),
        (A.T, jnp.moveaxis(weights, -1, 0)),
        unroll=min(A.shape[1], _STATES_AT_A_TIME),
    )
    return channel_score(norm, steps * u * total)


def _loops_of_devices(
    norm: str, arrays: SelectiveArrays, reset: TokenMask, anchors: TokenMask
) -> TokenScores:
    """Return the scores; each device has whole rows, because every step needs the largest channel."""

    def of_rows(A: Array, sequences: tuple[Array, ...], *masks: TokenMask) -> TokenScores:
        steps, u, B, C = sequences
        return scores_by_loop(norm, SelectiveArrays(steps, u, A, B, C), *masks)

    arguments = (arrays.A, (arrays.steps, arrays.u, arrays.B, arrays.C), reset, anchors)
    in_axes = [(), _ROWS, _ROWS, _ROWS]
    return logical_shard_map(of_rows, arguments, in_axes=in_axes, out_axes=_ROWS)(*arguments)


def scores_by_loop(norm: str, arrays: SelectiveArrays, reset: TokenMask, anchors: TokenMask) -> TokenScores:
    """Return the score of each token with one loop over time, for CPUs; see `scores_by_arrays`."""
    rows, length, channels = arrays.u.shape
    states = arrays.A.shape[1]
    sequences = (arrays.steps, arrays.u, arrays.B, arrays.C, reset, anchors)
    size = min(_CHUNK, length)
    step = _token_step(arrays.A)

    def score_chunk(state: tuple, at: int | Array, size: int) -> tuple:
        carried, scores, whole = state
        parts = (jax.lax.dynamic_slice_in_dim(values, at, size, axis=1) for values in sequences)
        chunk = [jnp.moveaxis(part, 1, 0) for part in parts]
        carried, influence = jax.lax.scan(step, carried, chunk, reverse=True)
        folded = jnp.moveaxis(fold_channels(norm, influence), 0, 1)
        scores = jax.lax.dynamic_update_slice_in_dim(scores, folded, at, axis=1)
        return carried, scores, whole if whole is None else whole + influence.sum(axis=0)[:, None]

    def score_full_chunk(count: Array, state: tuple) -> tuple:
        return score_chunk(state, length - (count + 1) * size, size)

    start = (jnp.zeros((rows, channels), jnp.float32), jnp.zeros((rows, states), jnp.float32))
    scores = jnp.zeros((rows, length, number_of_lanes(channels)), jnp.float32)
    whole = jnp.zeros((rows, 1, channels), jnp.float32) if norm == "relative" else None
    chunks, rest = divmod(length, size)
    state = jax.lax.fori_loop(0, chunks, score_full_chunk, (start, scores, whole))
    _, scores, whole = score_chunk(state, 0, rest) if rest else state
    return score_of_lanes(norm, scores, whole)


def _token_step(A: Float[Array, "channels N"]) -> Callable[[tuple, Sequence[Array]], tuple[tuple, Array]]:
    """Return a step from a token to the previous one, which returns the token's influence by channel.

    The carry is s_{t+1} + ... + s_T and C_T, or 0 if the token's entry reaches no anchor.
    """
    rates = A.T

    def step(carried: tuple[Array, Array], token: Sequence[Array]) -> tuple[tuple[Array, Array], Array]:
        elapsed, readout = carried
        taken, u, B, C, resets, is_anchor = token
        elapsed = jnp.where(is_anchor[:, None], 0.0, elapsed)
        readout = jnp.where(is_anchor[:, None], C, readout)
        weights = B * readout
        total = jnp.zeros_like(elapsed)
        # One state at a time: a sum over an axis of states takes 1.5 times as long.
        for state in range(rates.shape[0]):
            total += weights[:, state : state + 1] * jnp.exp(rates[state] * elapsed)
        readout = jnp.where(resets[:, None], 0.0, readout)
        return (elapsed + taken, readout), taken * u * total

    return step


def _state_score(
    norm: str,
    entry: StateSequence,
    elapsed: StateSequence,
    A: Float[Array, "channels N"],
    weights: Float[Array, "rows length N"],
) -> TokenScores:
    """Return the score from all numbers that a token adds to the state at its anchor."""

    def influence(state: tuple[Array, Array]) -> StateSequence:
        rate, weight = state
        return entry * (weight[..., None] * jnp.exp(rate * elapsed))

    return score_of_parts(norm, influence, (A.T, jnp.moveaxis(weights, -1, 0)))


def steps_to_anchor(steps: StateSequence, anchors: TokenMask) -> StateSequence:
    """Return s_{t+1} + ... + s_T of each channel, or head; T is the first anchor at or after t."""
    following = jnp.concatenate([steps[:, 1:], jnp.zeros_like(steps[:, :1])], axis=1)
    continues = jnp.broadcast_to(~anchors[..., None], steps.shape).astype(steps.dtype)
    return linear_scan(continues, following * continues, reverse=True)


def anchor_of(reset: TokenMask, anchors: TokenMask) -> tuple[Int[Array, "rows length"], TokenMask]:
    """Return the position of the first anchor at or after each token, and whether its entry reaches it."""
    length = anchors.shape[1]
    place = jnp.where(anchors, jnp.arange(length, dtype=jnp.int32)[None], length)
    place = jax.lax.cummin(place, axis=1, reverse=True)
    there = jnp.minimum(place, length - 1)
    resets = jnp.cumsum(reset, axis=1, dtype=jnp.int32)
    return there, (place < length) & (resets == jnp.take_along_axis(resets, there, axis=1))
