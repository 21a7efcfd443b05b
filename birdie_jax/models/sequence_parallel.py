"""Sequence parallelism: a recurrence and a short convolution over rows that are divided over devices.

The tokens of a row are divided into consecutive shards. A recurrence is linear in the state that enters a
shard: the state that leaves it is P * entering + H. P is the product of the shard's decays, numbers or
matrices, and H is the state that leaves it if zero enters.

So each device first scans its shard from zero, and the devices exchange only P and H. Then each computes
the state that enters its own shard, and scans again from that state (Martin and Cundy 2018, section 2.2,
with shards instead of steps). The derivative works the same way in reverse: the cotangent of the state that
enters a shard is P, transposed, times the cotangent of the state that leaves it, plus the shard's own
contribution.
"""

from collections.abc import Callable
from functools import partial
from operator import mul
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from birdie_jax.array_types import RecurrentSequence, RowState, TokenIds, TokenMask
from birdie_jax.models.axes import logical_shard_map, mesh_size

SEQUENCE = "sequence"

Resets = tuple[TokenMask, ...]
Features = Float[Array, "rows length features"]
Convolve = Callable[[Features, TokenIds, Features, TokenIds, Float[Array, "width features"]], Features]
ShardStates = Float[Array, "shards rows *numbers state"]
Apply = Callable[[Float[Array, "..."], RowState], RowState]


class RecurrenceOperands(NamedTuple):
    """The arrays that a recurrent layer reads.

    Attributes:
        sequences: a pytree of sequences, with one number per token and channel.
        vectors: a pytree of parameters, with one or more numbers per channel.
        shared: a pytree of sequences that all channels share; None = no such sequences.
    """

    sequences: PyTree[Float[Array, "rows length channels"]]
    vectors: PyTree[Float[Array, "channels ..."]]
    shared: PyTree[Float[Array, "rows length numbers"]] = None


class LocalRecurrence(NamedTuple):
    """A recurrence in the direction, or both directions, of a device's channels.

    Attributes:
        scan: (resets, inputs, h0) -> (y, last); see `birdie_jax.models.recurrence.Recurrence`.
        product: (resets, inputs) -> the product of all decays.
        apply: (product, state) -> the state after the decays.
        apply_transposed: (product, cotangent) -> the cotangent of the state before the decays.
    """

    scan: Callable[[Resets, RecurrenceOperands, RowState | None], tuple[RecurrentSequence, RowState]]
    product: Callable[[Resets, RecurrenceOperands], Float[Array, "..."]]
    apply: Apply = mul
    apply_transposed: Apply = mul


def entering_states(
    products: Float[Array, "shards ..."], last: ShardStates, first: RowState, apply: Apply = mul
) -> tuple[ShardStates, RowState]:
    """Return the state that enters each shard, and the state that leaves the last shard.

    Args:
        products: the product of the decays of each shard.
        last: the state that leaves each shard if zero enters it.
        first: the state that enters the first shard.
        apply: (product, state) -> the state after the decays.
    """

    def pass_shard(entering, shard):
        product, own = shard
        return apply(product, entering) + own, entering

    leaving, entering = jax.lax.scan(pass_shard, first, (products, last))
    return entering, leaving


def _exchange_states(
    product: Float[Array, "..."],
    last: RowState,
    first: RowState,
    reverse: Bool[Array, "channels ..."],
    apply: Apply,
) -> tuple[RowState, RowState]:
    """Return the state that enters this device's shard, and the state that leaves the row.

    `reverse` is true for each channel that runs in reverse.
    """
    shard = jax.lax.axis_index(SEQUENCE)
    products, lasts = jax.lax.all_gather((product, last), SEQUENCE)
    forward, leaving_forward = entering_states(products, lasts, first, apply)
    backward, leaving_backward = entering_states(products[::-1], lasts[::-1], first, apply)
    entering = jnp.where(reverse, backward[::-1][shard], forward[shard])
    return entering, jnp.where(reverse, leaving_backward, leaving_forward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def sequence_parallel(
    recurrence: LocalRecurrence,
    inputs: RecurrenceOperands,
    h0: RowState,
    resets: Resets,
    reverse: Bool[Array, "channels ..."],
) -> tuple[RecurrentSequence, RowState]:
    """Return (y, last) on one of the devices along `sequence`; h0 and `last` belong to whole rows.

    Args:
        recurrence: the recurrence on this device's channels.
        inputs: the arrays of this device's shard.
        h0: the state before the first token of the rows.
        resets: the resets of the shard, for each direction.
        reverse: whether each channel runs in reverse, with an axis of size 1 for each axis of a state after
            the channels.
    """
    return _sequence_parallel_forward(recurrence, inputs, h0, resets, reverse)[0]


def _sequence_parallel_forward(recurrence, inputs, h0, resets, reverse):
    product = recurrence.product(resets, inputs)
    _, own = recurrence.scan(resets, inputs, jnp.zeros_like(h0))
    entering, leaving = _exchange_states(product, own, h0, reverse, recurrence.apply)
    (y, last), pull_back = jax.vjp(partial(recurrence.scan, resets), inputs, entering)
    return (y, leaving), (pull_back, product, jnp.zeros_like(last), reverse)


def _sequence_parallel_backward(recurrence, residuals, cotangents):
    pull_back, product, zero, reverse = residuals
    dy, dlast = cotangents
    # Every shard returns the same result, and receives a share of its cotangent.
    dlast = jax.lax.psum(dlast, SEQUENCE)
    _, own = pull_back((dy, zero))
    dleaving, dh0 = _exchange_states(product, own, dlast, ~reverse, recurrence.apply_transposed)
    dinputs, _ = pull_back((dy, dleaving))
    # The cotangents of an argument that all shards read are summed.
    dh0 = jnp.where(jax.lax.axis_index(SEQUENCE) == 0, dh0, 0.0)
    return dinputs, dh0, None, None


sequence_parallel.defvjp(_sequence_parallel_forward, _sequence_parallel_backward)


def sharded_convolution(
    convolve: Convolve,
    x: Float[Array, "rows length features"],
    kernel: Float[Array, "width features"],
    segments: TokenIds,
    *,
    channels: str | None,
) -> Float[Array, "rows length features"]:
    """Return a causal convolution of rows with tokens divided over the devices along `sequence`.

    Each device receives the last width - 1 tokens of the device on its left.

    Args:
        convolve: (x, segments, previous x, previous segments, kernel) -> y, with the width - 1 previous
            tokens. Tokens before the start of a row have segment 0.
        x: the sequence.
        kernel: the taps.
        segments: the sample of each token, 0 on padding.
        channels: the logical axis of the channels of `x`.

    Raises:
        ValueError: a shard has fewer than width - 1 tokens.
    """
    shards = mesh_size(SEQUENCE)
    halo = kernel.shape[0] - 1
    if x.shape[1] // shards < halo:
        raise ValueError(
            f"convolution: found a shard of {x.shape[1] // shards} tokens; allowed: at least width - 1 = "
            f"{halo}"
        )
    to_next_shard = [(shard, shard + 1) for shard in range(shards - 1)]

    def previous(values):
        # The first shard receives zeros.
        return jax.lax.ppermute(values[:, values.shape[1] - halo :], SEQUENCE, to_next_shard)

    def convolve_shard(x, kernel, segments):
        return convolve(x, segments, previous(x), previous(segments), kernel)

    convolve_rows = logical_shard_map(
        convolve_shard,
        (x, kernel, segments),
        in_axes=[("rows", "length", channels), (None, channels), ("rows", "length")],
        out_axes=("rows", "length", channels),
    )
    return convolve_rows(x, kernel, segments)
