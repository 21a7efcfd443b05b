"""The influence of each token on a recurrence with one number per channel, at its sample's anchor.

With g_T = o_T and g_t = a_{t+1} g_{t+1}, the influence of token t is g_t x_t (see `influence`), so one
reverse scan scores all tokens. Accelerators use `linear_scan` and a reduction of whole arrays. CPUs use a
loop over time, which reduces each token's channels to a few numbers while they are in the processor's
cache. It reads decays and entries from the arrays of the layer's own scan, and allocates no other array of
their size (`python -m benchmarks.pruned_prefill`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from birdie_jax.array_types import StateSequence, TokenMask
from birdie_jax.models.axes import logical_shard_map
from birdie_jax.models.influence import (
    InfluenceRequest,
    TokenScores,
    channel_score,
    fold_channels,
    number_of_lanes,
    score_of_lanes,
)
from pallas_kernels.linear_scan import linear_scan

# The axes that devices divide for a score. Channels stay whole, because a score needs the largest of them.
_TOKENS = ("rows", None)
_ARRAYS = ("rows", None, None)

_Step = Float[Array, "rows 1 channels"]


def _unchanged(gate: Array) -> Array:
    return gate


@partial(jax.tree_util.register_dataclass, data_fields=["decay", "entry", "gate"], meta_fields=["readout"])
@dataclass(frozen=True)
class RecurrenceArrays:
    """The arrays of h_t = a_t h_{t-1} + x_t, y_t = o_t h_t; see `influence.ScoredArrays`.

    Attributes:
        decay: a_t; in a bidirectional layer its second half belongs to the channels that run in reverse.
        entry: x_t, in the same order of channels.
        gate: the input of o_t, in the same order; None if the layer has no output gate.
        readout: the elementwise function from the gate to o_t.
    """

    decay: StateSequence
    entry: StateSequence
    gate: StateSequence | None
    readout: Callable[[Array], Array] = _unchanged

    def split_channels(self, parts: int) -> list["RecurrenceArrays"]:
        """Return the arrays of `parts` equal parts of the channels."""
        return [
            jax.tree.map(lambda array, part=part: jnp.split(array, parts, axis=-1)[part], self)
            for part in range(parts)
        ]

    def reversed_in_time(self) -> "RecurrenceArrays":
        """Return the arrays with the last token first."""
        return jax.tree.map(lambda array: array[:, ::-1], self)

    def forward_score(self, request: InfluenceRequest, reset: TokenMask, anchors: TokenMask) -> TokenScores:
        """Return the score of each token, float32; see `influence.ScoredArrays`."""
        arrays: RecurrenceArrays = jax.tree.map(lambda array: array.astype(jnp.float32), self)
        if request.norm == "entry":
            return jnp.linalg.norm(arrays.entry, axis=-1)
        if request.readout == "state":
            arrays = RecurrenceArrays(arrays.decay, arrays.entry, None)
        score_rows = logical_shard_map(
            partial(_scores_of_rows, request.norm),
            (arrays, reset, anchors),
            in_axes=[_ARRAYS, _TOKENS, _TOKENS],
            out_axes=_TOKENS,
        )
        return score_rows(arrays, reset, anchors)

    def readout_at(self, at: slice, anchors: TokenMask) -> Float[Array, "rows some_tokens channels"]:
        """Return o_t of the anchors among the tokens `at`, and 0 for the other tokens."""
        there = jnp.ones_like(self.entry[:, at]) if self.gate is None else self.readout(self.gate[:, at])
        return jnp.where(anchors[:, at, None], there, 0.0)


def _scores_of_rows(
    norm: str, arrays: RecurrenceArrays, reset: TokenMask, anchors: TokenMask
) -> TokenScores:
    """Return the scores of a device's rows, with the form that is fastest on its platform."""
    return jax.lax.platform_dependent(
        arrays, reset, anchors, cpu=partial(scores_by_loop, norm), default=partial(scores_by_arrays, norm)
    )


def scores_by_arrays(
    norm: str, arrays: RecurrenceArrays, reset: TokenMask, anchors: TokenMask
) -> TokenScores:
    """Return the score of each token with a reverse scan and a reduction, for accelerators.

    Args:
        norm: one of `influence.NORMS` except "entry".
        arrays: the arrays of the recurrence, float32.
        reset: whether no state enters a token from the previous one.
        anchors: the anchors of the samples.
    """
    passed_on = jnp.where(reset[..., None], 0.0, arrays.decay)
    to_the_left = jnp.concatenate([passed_on[:, 1:], jnp.zeros_like(passed_on[:, :1])], axis=1)
    reached = linear_scan(to_the_left, arrays.readout_at(slice(None), anchors), reverse=True)
    return channel_score(norm, reached * arrays.entry)


def scores_by_loop(
    norm: str, arrays: RecurrenceArrays, reset: TokenMask, anchors: TokenMask
) -> TokenScores:
    """Return the score of each token with one loop over time, for CPUs; see `scores_by_arrays`."""

    def of_prompts() -> TokenScores:
        return _loop(norm, arrays, reset, arrays.readout_at(slice(-1, None), anchors), None)

    def of_packed_rows() -> TokenScores:
        last = jnp.zeros_like(arrays.entry[:, -1:])
        return _loop(norm, arrays, reset, last, arrays.readout_at(slice(None), anchors))

    # The anchors of prompts are at the end of the row, so only the last token needs a readout.
    return jax.lax.cond(jnp.any(anchors[:, :-1]), of_packed_rows, of_prompts)


def _loop(
    norm: str, arrays: RecurrenceArrays, reset: TokenMask, last: _Step, read: StateSequence | None
) -> TokenScores:
    """Return the scores; the anchors' o_t is `last` for anchors at the end of the row, else `read`."""
    rows, length, channels = arrays.entry.shape

    def step(count: Array, carried: tuple[_Step, Array, _Step | None]) -> tuple[_Step, Array, _Step | None]:
        reached, scores, whole = carried
        t = length - 1 - count
        if read is not None:
            reached += _at(read, t)
        influence = reached * _at(arrays.entry, t)
        if whole is not None:
            whole += influence
        folded = fold_channels(norm, influence)
        scores = jax.lax.dynamic_update_slice_in_dim(scores, folded, t, axis=1)
        passed_on = jnp.where(_at(reset, t)[..., None], 0.0, _at(arrays.decay, t))
        return passed_on * reached, scores, whole

    whole = jnp.zeros_like(last) if norm == "relative" else None
    lanes = number_of_lanes(channels)
    start = (last, jnp.zeros((rows, length, lanes), jnp.float32), whole)
    _, scores, whole = jax.lax.fori_loop(0, length, step, start, unroll=min(2, length))
    return score_of_lanes(norm, scores, whole)


def _at(values: Array, t: Array) -> Array:
    return jax.lax.dynamic_slice_in_dim(values, t, 1, axis=1)
