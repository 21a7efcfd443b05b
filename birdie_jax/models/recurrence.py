"""What every recurrent mixer shares: the scan in the directions that a layout allows, and its cache."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from birdie_jax.array_types import RowState, StateSequence
from birdie_jax.models.layout import Layout
from birdie_jax.models.over_sequence import Inputs, Recurrence, recurrence_over_devices
from pallas_kernels.gated_scan import Cell, gated_scan


class ScanSettings(NamedTuple):
    """What the configuration says of a mixer's scan.

    Attributes:
        bidirectional: whether the second half of the channels runs in reverse.
        dtype: type of decays, entries and states where they go through memory; the carry is float32.
        implementation: of `gated_scan`; None = the best one for the platform.
    """

    bidirectional: bool
    dtype: jnp.dtype
    implementation: str | None


class RecurrentCache(NamedTuple):
    """What decoding carries from token to token, of constant size.

    Attributes:
        state: float32, the forward channels after the last token (all N of them in a causal model).
        conv_tail: the last conv_width - 1 inputs of the convolution; no time steps where there is none.
    """

    state: RowState
    conv_tail: Float[Array, "rows tail channels"]

    def after(
        self, last: Float[Array, "rows channels"], conv_tail: Float[Array, "rows tail features"]
    ) -> "RecurrentCache":
        """Return the cache that continues where the state of all channels was `last`."""
        return RecurrentCache(last[:, : self.state.shape[-1]], conv_tail)


def empty_recurrent_cache(
    rows: int, channels: int, tail: tuple[int, int], dtype: jnp.dtype
) -> RecurrentCache:
    """Return the cache of `rows` new samples: `channels` run forward, `tail` is steps and channels."""
    return RecurrentCache(
        state=jnp.zeros((rows, channels), jnp.float32), conv_tail=jnp.zeros((rows, *tail), dtype)
    )


def recurrent_layer(
    cell: Cell,
    operands: tuple[StateSequence, ...],
    gate: StateSequence | None,
    parameters: tuple[Float[Array, " channels"], ...],
    *,
    layout: Layout,
    initial: Float[Array, "rows forward"] | None,
    settings: ScanSettings,
) -> tuple[StateSequence, Float[Array, "rows channels"]]:
    """Return what a recurrent layer computes between its projections, cut where `layout` has its resets.

    Where `bidirectional`, the second half of the channels runs in reverse (Birdie paper, section 3.1):
    h_t = a_t * h_{t+1} + x_t, with a_t taken as zero at a reverse reset.

    Args:
        cell: from the projections to decay, entry and output gate.
        operands: the projections that the cell reads.
        gate: the projection of its output gate, or None.
        parameters: a number a channel each.
        layout: where information may flow.
        initial: state of the forward channels before the first token; zero if None.
        settings: what the mixer's configuration says of the scan.

    Returns:
        The gated states, and in float32 the state after the last token that each channel read.
    """
    resets = (layout.forward_reset,)
    if settings.bidirectional:
        resets = (layout.forward_reset, layout.reverse_reset)
        if initial is not None:
            # What comes after the last token is not there yet: the channels in reverse start from nothing.
            initial = jnp.concatenate([initial, jnp.zeros_like(initial)], axis=-1)
    return recurrence_over_devices(
        make_recurrence(cell, settings),
        Inputs((operands, gate), parameters),
        initial,
        resets,
        bidirectional=settings.bidirectional,
    )


def make_recurrence(cell: Cell, settings: ScanSettings) -> Recurrence:
    """Return the recurrence of a cell, whose inputs are ((operands, gate), parameters)."""

    def scan(direction, inputs, h0, resets):
        operands, gate = inputs.sequences
        return gated_scan(
            cell,
            operands,
            gate,
            inputs.vectors,
            direction=direction,
            h0=h0,
            resets=resets,
            scan_dtype=settings.dtype,
            implementation=settings.implementation,
        )

    return Recurrence(scan, partial(_product, cell))


def _product(cell, direction, inputs, resets):
    """Return the product of the decays, zero where a reset is among them."""
    operands, _ = inputs.sequences
    as_float32 = jax.tree.map(lambda array: array.astype(jnp.float32), (inputs.vectors, operands))
    decay, _ = cell.enter(*as_float32, None)
    halves = jnp.split(decay, 2, axis=-1) if direction == "both" else (decay,)
    products = [
        jnp.prod(jnp.where(reset[..., None], 0.0, half), axis=1)
        for half, reset in zip(halves, resets, strict=True)
    ]
    return jnp.concatenate(products, axis=-1)
