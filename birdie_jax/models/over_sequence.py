"""A recurrence and a short convolution whose rows, channels and positions lie on several devices.

The positions of a row are divided into shards, one after the other. A recurrence is linear in the state
that enters a shard: the state that leaves it is P * entering + H, with P the product of the shard's decays
and H what it leaves when nothing enters. So each device scans its shard from nothing, the devices exchange
P and H alone, each computes from them what enters its own shard, and scans again from there (Martin and
Cundy 2018, section 2.2, with shards in the place of steps). The derivative is the same the other way: the
cotangent of what enters a shard is P times that of what leaves it, plus what the shard itself adds.

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
from birdie_jax.models.axes import dividing_axes, mesh_size
from birdie_jax.models.over_devices import over_devices

TENSOR, SEQUENCE = "tensor", "sequence"

Resets = tuple[TokenMask, ...]
ShardStates = Float[Array, "shards rows channels"]


class Inputs(NamedTuple):
    """What a recurrent layer reads.

    Attributes:
        sequences: a pytree of arrays with a number for each position and channel.
        vectors: a pytree of arrays with a number for each channel.
    """

    sequences: PyTree[Float[Array, "rows length channels"]]
    vectors: PyTree[Float[Array, " channels"]]


class Recurrence(NamedTuple):
    """A recurrent layer that treats every row and every channel on its own.

    Both functions are told which direction to read in, "forward", "reverse" or "both" (the second half of
    the channels in reverse), and the resets of that direction or of each of both.

    Attributes:
        scan: (direction, inputs, h0, resets) -> (y, last). h0 is the state before the first step read,
            [rows, channels], or None for zero; y is a sequence, and `last` the state after the last step
            read, float32.
        product: (direction, inputs, resets) -> the product of all decays, float32 [rows, channels]; a decay
            counts as zero at a reset.
    """

    scan: Callable
    product: Callable


def recurrence_over_devices(
    recurrence: Recurrence,
    inputs: Inputs,
    h0: RowState | None,
    resets: Resets,
    *,
    bidirectional: bool,
) -> tuple[StateSequence, RowState]:
    """Return (y, last) of `recurrence` over whole rows, on the devices of the mesh in force.

    Args:
        recurrence: the layer.
        inputs: what it reads.
        h0: state before the first position read; zero if None.
        resets: the forward one, and where `bidirectional` the reverse one.
        bidirectional: whether the second half of the channels is read in reverse.

    Raises:
        ValueError: `bidirectional`, and channels lie on an odd number of devices.
    """
    rows, length, channels = jax.tree.leaves(inputs.sequences)[0].shape
    pieces = mesh_size(TENSOR) if dividing_axes("inner", channels) else 1
    shards = mesh_size(SEQUENCE) if dividing_axes("length", length) else 1
    if bidirectional and pieces > 1 and pieces % 2:
        raise ValueError(
            f"recurrence: channels of two directions lie on an even number of devices; found {pieces}"
        )
    here = Recurrence(
        partial(_in_own_direction, recurrence.scan, bidirectional, pieces),
        partial(_in_own_direction, recurrence.product, bidirectional, pieces),
    )

    def scan_whole_rows(sequences, vectors, h0, resets):
        return here.scan(resets, Inputs(sequences, vectors), h0)

    def scan_shards(sequences, vectors, h0, resets):
        own = h0.shape[-1]
        if not bidirectional:
            reverse = jnp.zeros(own, bool)
        elif pieces == 1:
            reverse = jnp.arange(own) >= own // 2
        else:
            reverse = jnp.full(own, jax.lax.axis_index(TENSOR) >= pieces // 2)
        return _chained(here, Inputs(sequences, vectors), h0, resets, reverse)

    if shards > 1 and h0 is None:
        h0 = jnp.zeros((rows, channels), jnp.float32)
    return over_devices(
        scan_shards if shards > 1 else scan_whole_rows,
        *inputs,
        h0,
        resets,
        axes=[("rows", "length", "inner"), ("inner",), ("rows", "inner"), ("rows", "length")],
        result=[("rows", "length", "inner"), ("rows", "inner")],
    )


def _in_own_direction(function, bidirectional, pieces, resets, *arguments):
    """Call `function` for the direction, or the directions, of the channels that this device has."""
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
        products: of the decays of each shard.
        last: what each shard leaves where nothing enters it.
        first: what enters the first shard.
    """

    def pass_shard(entering, shard):
        product, own = shard
        return product * entering + own, entering

    leaving, entering = jax.lax.scan(pass_shard, first, (products, last))
    return entering, leaving


def _exchange(product, last, first, reverse):
    """Return what enters this device's shard, and what leaves the row; `reverse` is of each channel."""
    shard = jax.lax.axis_index(SEQUENCE)
    products, lasts = jax.lax.all_gather((product, last), SEQUENCE)
    forward, leaving_forward = entering_states(products, lasts, first)
    backward, leaving_backward = entering_states(products[::-1], lasts[::-1], first)
    entering = jnp.where(reverse, backward[::-1][shard], forward[shard])
    return entering, jnp.where(reverse, leaving_backward, leaving_forward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chained(recurrence, inputs, h0, resets, reverse: Bool[Array, " channels"]):
    """Return (y, last) on one of the devices along `sequence`; h0 and `last` are those of whole rows."""
    return _chained_forward(recurrence, inputs, h0, resets, reverse)[0]


def _chained_forward(recurrence, inputs, h0, resets, reverse):
    product = recurrence.product(resets, inputs)
    _, own = recurrence.scan(resets, inputs, jnp.zeros_like(h0))
    entering, leaving = _exchange(product, own, h0, reverse)
    (y, last), pull_back = jax.vjp(partial(recurrence.scan, resets), inputs, entering)
    return (y, leaving), (pull_back, product, jnp.zeros_like(last), reverse)


def _chained_backward(recurrence, residuals, cotangents):
    pull_back, product, nothing, reverse = residuals
    dy, dlast = cotangents
    # Of a result that all shards have, each is handed its share of the cotangent.
    dlast = jax.lax.psum(dlast, SEQUENCE)
    _, own = pull_back((dy, nothing))
    dleaving, dh0 = _exchange(product, own, dlast, ~reverse)
    dinputs, _ = pull_back((dy, dleaving))
    # The cotangents of an argument that all shards have are added up.
    dh0 = jnp.where(jax.lax.axis_index(SEQUENCE) == 0, dh0, 0.0)
    return dinputs, dh0, None, None


_chained.defvjp(_chained_forward, _chained_backward)


def convolution_over_devices(
    convolve: Callable,
    x: Float[Array, "rows length features"],
    kernel: Float[Array, "width features"],
    segments: TokenIds,
    *,
    channels: str | None,
) -> Float[Array, "rows length features"]:
    """Return a causal convolution of rows whose positions are divided over the devices along `sequence`.

    Each device receives from the one on its left the width - 1 positions before its own.

    Args:
        convolve: (x, segments, before x, segments before, kernel) -> y; there are width - 1 positions
            before. Those before the first position of a row have segment 0.
        x: what is convolved.
        kernel: taps.
        segments: sample of each position, 0 on padding.
        channels: logical axis of the channels of `x`.

    Raises:
        ValueError: a shard has fewer than width - 1 positions.
    """
    shards = mesh_size(SEQUENCE)
    halo = kernel.shape[0] - 1
    if x.shape[1] // shards < halo:
        raise ValueError(
            f"convolution: a shard of {x.shape[1] // shards} positions is less than the {halo} before it"
        )
    to_the_right = [(shard, shard + 1) for shard in range(shards - 1)]

    def before(values):
        # The first shard receives zeros.
        return jax.lax.ppermute(values[:, values.shape[1] - halo :], SEQUENCE, to_the_right)

    def convolve_shard(x, kernel, segments):
        return convolve(x, segments, before(x), before(segments), kernel)

    return over_devices(
        convolve_shard,
        x,
        kernel,
        segments,
        axes=[("rows", "length", channels), (None, channels), ("rows", "length")],
        result=("rows", "length", channels),
    )
