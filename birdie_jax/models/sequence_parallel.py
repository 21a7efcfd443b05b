"""Sequence parallelism: a recurrence and a short convolution over rows that several devices share.

The tokens of a row are divided into shards, one after the other. A recurrence is linear in the state
that enters a shard: the state that leaves it is P * entering + H, with P the product of the shard's decays
and H the state that leaves it if zero enters. So each device scans its shard from zero, the devices
exchange P and H alone, each computes from them what enters its own shard, and scans again from there
(Martin and Cundy 2018, section 2.2, with shards in the place of steps). The derivative is the same the
other way: the cotangent of the state that enters a shard is P times that of the state that leaves it, plus
what the shard itself adds.

Where half of the channels is read in reverse and channels are divided too, an even number of devices has
channels of one direction each.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from birdie_jax.array_types import RowState, StateSequence, TokenIds, TokenMask
from birdie_jax.models.axes import LogicalAxes, dividing_axes, logical_shard_map, mesh_size

TENSOR, SEQUENCE = "tensor", "sequence"

Resets = tuple[TokenMask, ...]
ShardStates = Float[Array, "shards rows *numbers channels"]


class RecurrenceOperands(NamedTuple):
    """The arrays that a recurrent layer reads.

    Attributes:
        sequences: the pytree of its sequences, with a number for each token and channel.
        vectors: the pytree of its parameters, with a number, or several, for each channel.
        shared: the pytree of sequences that are the same for all channels; None: there are none.
    """

    sequences: PyTree[Float[Array, "rows length channels"]]
    vectors: PyTree[Float[Array, "channels ..."]]
    shared: PyTree[Float[Array, "rows length numbers"]] = None


class Recurrence(NamedTuple):
    """A recurrent layer that treats every row and every channel independently.

    Both functions take the direction of reading, "forward", "reverse" or "both" (the second half of the
    channels in reverse), and the resets of that direction or of each of both.

    Attributes:
        scan: (direction, inputs, h0, resets) -> (y, last). h0 is the state before the first token read,
            [rows, channels], or None for zero; y is a sequence, and `last` the state after the last token
            read, float32.
        product: (direction, inputs, resets) -> the product of all decays, float32 [rows, channels]; a decay
            counts as zero at a reset.
        state_axes: the logical axes of a state; where there are more than two, h0 is never None.
    """

    scan: Callable[..., tuple[StateSequence, RowState]]
    product: Callable[..., RowState]
    state_axes: LogicalAxes = ("rows", "inner")


def sharded_recurrence(
    recurrence: Recurrence,
    inputs: RecurrenceOperands,
    h0: RowState | None,
    resets: Resets,
    *,
    bidirectional: bool,
) -> tuple[StateSequence, RowState]:
    """Return (y, last) of `recurrence` over whole rows, divided over the devices of the mesh in force.

    Args:
        recurrence: the layer.
        inputs: the arrays that it reads.
        h0: the state before the first token read; zero if None.
        resets: the forward reset, and where `bidirectional` the reverse reset.
        bidirectional: whether the second half of the channels is read in reverse.

    Raises:
        ValueError: `bidirectional`, and an odd number of devices divides the channels.
    """
    rows, length, channels = jax.tree.leaves(inputs.sequences)[0].shape
    pieces = mesh_size(TENSOR) if dividing_axes("inner", channels) else 1
    shards = mesh_size(SEQUENCE) if dividing_axes("length", length) else 1
    if bidirectional and pieces > 1 and pieces % 2:
        raise ValueError(
            f"recurrence: found {pieces} devices along {TENSOR} for channels of two directions; allowed: 1 "
            "or an even number"
        )
    local = Recurrence(
        partial(_in_local_direction, recurrence.scan, bidirectional, pieces),
        partial(_in_local_direction, recurrence.product, bidirectional, pieces),
    )

    def scan_whole_rows(inputs, h0, resets):
        return local.scan(resets, inputs, h0)

    def scan_shards(inputs, h0, resets):
        channels = h0.shape[-1]
        if not bidirectional:
            reverse = jnp.zeros(channels, bool)
        elif pieces == 1:
            reverse = jnp.arange(channels) >= channels // 2
        else:
            reverse = jnp.full(channels, jax.lax.axis_index(TENSOR) >= pieces // 2)
        return _sequence_parallel(local, inputs, h0, resets, reverse)

    if shards > 1 and h0 is None:
        h0 = jnp.zeros((rows, channels), jnp.float32)

    def scan(sequences, vectors, shared, h0, resets):
        scan_local = scan_shards if shards > 1 else scan_whole_rows
        return scan_local(RecurrenceOperands(sequences, vectors, shared), h0, resets)

    sequence_axes, state_axes = ("rows", "length", "inner"), recurrence.state_axes
    return logical_shard_map(
        scan,
        *inputs,
        h0,
        resets,
        in_axes=[sequence_axes, ("inner",), ("rows", "length"), state_axes, ("rows", "length")],
        out_axes=[sequence_axes, state_axes],
    )


def _in_local_direction(
    function: Callable[..., PyTree[Array]],
    bidirectional: bool,
    pieces: int,
    resets: Resets,
    *arguments: PyTree[Array],
) -> PyTree[Array]:
    """Call `function` for the direction, or both directions, of the channels of this device."""
    if not bidirectional:
        return function("forward", *arguments, resets)
    if pieces == 1:
        return function("both", *arguments, resets)
    forward_reset, reverse_reset = resets
    return jax.lax.cond(
        jax.lax.axis_index(TENSOR) < pieces // 2,
        lambda *arguments: function("forward", *arguments, (forward_reset,)),
        lambda *arguments: function("reverse", *arguments, (reverse_reset,)),
        *arguments,
    )


def entering_states(
    products: ShardStates, last: ShardStates, first: RowState
) -> tuple[ShardStates, RowState]:
    """Return the state that enters each shard, and the one that leaves the last of them.

    Args:
        products: the product of the decays of each shard.
        last: the state that leaves each shard if zero enters it.
        first: the state that enters the first shard.
    """

    def pass_shard(entering, shard):
        product, own = shard
        return product * entering + own, entering

    leaving, entering = jax.lax.scan(pass_shard, first, (products, last))
    return entering, leaving


def _exchange_states(
    product: RowState, last: RowState, first: RowState, reverse: Bool[Array, " channels"]
) -> tuple[RowState, RowState]:
    """Return the state that enters this device's shard, and the one that leaves the row.

    `reverse` tells for each channel whether it is read from the end of the row.
    """
    shard = jax.lax.axis_index(SEQUENCE)
    products, lasts = jax.lax.all_gather((product, last), SEQUENCE)
    forward, leaving_forward = entering_states(products, lasts, first)
    backward, leaving_backward = entering_states(products[::-1], lasts[::-1], first)
    entering = jnp.where(reverse, backward[::-1][shard], forward[shard])
    return entering, jnp.where(reverse, leaving_backward, leaving_forward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sequence_parallel(
    recurrence: Recurrence,
    inputs: RecurrenceOperands,
    h0: RowState,
    resets: Resets,
    reverse: Bool[Array, " channels"],
) -> tuple[StateSequence, RowState]:
    """Return (y, last) on one of the devices along `sequence`; h0 and `last` belong to whole rows."""
    return _sequence_parallel_forward(recurrence, inputs, h0, resets, reverse)[0]


def _sequence_parallel_forward(recurrence, inputs, h0, resets, reverse):
    product = recurrence.product(resets, inputs)
    _, own = recurrence.scan(resets, inputs, jnp.zeros_like(h0))
    entering, leaving = _exchange_states(product, own, h0, reverse)
    (y, last), pull_back = jax.vjp(partial(recurrence.scan, resets), inputs, entering)
    return (y, leaving), (pull_back, product, jnp.zeros_like(last), reverse)


def _sequence_parallel_backward(recurrence, residuals, cotangents):
    pull_back, product, zero, reverse = residuals
    dy, dlast = cotangents
    # Every shard returns the same result, and is given a share of its cotangent.
    dlast = jax.lax.psum(dlast, SEQUENCE)
    _, own = pull_back((dy, zero))
    dleaving, dh0 = _exchange_states(product, own, dlast, ~reverse)
    dinputs, _ = pull_back((dy, dleaving))
    # The cotangents of an argument that every shard reads are added up.
    dh0 = jnp.where(jax.lax.axis_index(SEQUENCE) == 0, dh0, 0.0)
    return dinputs, dh0, None, None


_sequence_parallel.defvjp(_sequence_parallel_forward, _sequence_parallel_backward)


def sharded_convolution(
    convolve: Callable[..., Float[Array, "rows length features"]],
    x: Float[Array, "rows length features"],
    kernel: Float[Array, "width features"],
    segments: TokenIds,
    *,
    channels: str | None,
) -> Float[Array, "rows length features"]:
    """Return a causal convolution of rows whose tokens are divided over the devices along `sequence`.

    Each device receives from the one on its left the width - 1 tokens before its own.

    Args:
        convolve: (x, segments, previous x, previous segments, kernel) -> y, where the previous ones are the
            width - 1 tokens before. Those before the first token of a row have segment 0.
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

    return logical_shard_map(
        convolve_shard,
        x,
        kernel,
        segments,
        in_axes=[("rows", "length", channels), (None, channels), ("rows", "length")],
        out_axes=("rows", "length", channels),
    )
