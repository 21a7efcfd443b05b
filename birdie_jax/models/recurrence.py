"""What every recurrent mixer shares: its limits, its cache, the scan in the directions of a layout."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from birdie_jax.array_types import RowState, StateSequence, TokenMask
from birdie_jax.config_sections import Config, MixerConfig, ModelConfig, Require
from birdie_jax.models.axes import must_divide
from birdie_jax.models.influence import leave_influence
from birdie_jax.models.layout import Layout
from birdie_jax.models.platforms import check_implementation
from birdie_jax.models.recurrence_influence import RecurrenceArrays
from birdie_jax.models.sequence_parallel import (
    Recurrence,
    RecurrenceOperands,
    Resets,
    sharded_recurrence,
)
from pallas_kernels.gated_scan import Cell, gated_scan
from pallas_kernels.linear_scan import IMPLEMENTATIONS


@dataclass(frozen=True)
class RecurrentConfig(MixerConfig):
    """What the sections of recurrent mixers have in common: what a mesh may divide."""

    def conv_taps(self, model: ModelConfig) -> int:
        """Return the taps of the short convolution in a model; 0 without one."""
        del model
        return 0

    def check_model(self, config: Config, require: Require) -> None:
        """Check that the spacing between samples is as wide as the convolution reaches."""
        reach = max(self.conv_taps(config.model) - 1, 0)
        allowed = f"at least model.{self.section}.conv_width - 1 = {reach}"
        require(config.batching.spacing >= reach, "batching.spacing", allowed)

    def check_platform(self, model: ModelConfig, platform: str, require: Require) -> None:
        """Check that the implementation of the scan is one for the platform."""
        asked = model.scan_implementation
        check_implementation(require, "model.scan_implementation", asked, IMPLEMENTATIONS, platform)

    def mesh_problem(self, model: ModelConfig, length: int, axis: str, size: int) -> str | None:
        """Return why the recurrence cannot be divided: channels by `tensor`, tokens by `sequence`."""
        if axis == "tensor":
            problem = must_divide(size, {"model.state": model.state})
            if problem is None and model.bidirectional and size > 1 and size % 2:
                return "1 or even: half of the recurrent channels is read in reverse"
            return problem
        reach = max(self.conv_taps(model) - 1, 0)
        if axis == "sequence" and size > 1 and length // size < reach:
            return f"a device needs model.{self.section}.conv_width - 1 = {reach} positions of a row"
        return None


class ScanSettings(NamedTuple):
    """The settings of a mixer's scan.

    Attributes:
        bidirectional: whether the second half of the channels runs in reverse.
        dtype: the type of decays, inputs and states where they go through memory; the carry is float32.
        implementation: the implementation of `gated_scan`; None = the best one for the platform.
    """

    bidirectional: bool
    dtype: jnp.dtype
    implementation: str | None


def recurrent_attributes(config: ModelConfig) -> dict[str, Any]:
    """Return the attributes that every recurrent mixer has, from the fields that all models read."""
    return {
        "features": config.features,
        "state": config.state,
        "bidirectional": config.bidirectional,
        "dtype": jnp.dtype(config.dtype),
        "scan_dtype": jnp.dtype(config.scan_dtype),
        "scan_implementation": config.scan_implementation or None,
    }


class RecurrentCache(NamedTuple):
    """What decoding carries from token to token, of constant size.

    Attributes:
        state: the float32 state of the forward channels after the last token (all of them in a causal
            model); channels are its last axis.
        conv_tail: the last conv_width - 1 inputs of the convolution; no time steps where there is none.
    """

    state: RowState
    conv_tail: Float[Array, "rows tail channels"]

    def updated(
        self,
        last: Float[Array, "rows *numbers channels"],
        conv_tail: Float[Array, "rows tail features"] | None,
    ) -> "RecurrentCache":
        """Return the cache after a call that left all channels in the state `last`; None keeps the tail."""
        tail = self.conv_tail if conv_tail is None else conv_tail
        return RecurrentCache(last[..., : self.state.shape[-1]], tail)


def empty_recurrent_cache(
    rows: int, channels: int, tail: tuple[int, int], dtype: jnp.dtype
) -> RecurrentCache:
    """Return the cache of `rows` new samples.

    Args:
        rows: the number of samples, one a row.
        channels: the number of channels that run forward.
        tail: the steps and the channels of the convolution's tail.
        dtype: the type of the tail.
    """
    return RecurrentCache(
        state=jnp.zeros((rows, channels), jnp.float32), conv_tail=jnp.zeros((rows, *tail), dtype)
    )


def recurrent_layer(
    mixer: nn.Module,
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
        mixer: the linen module of the layer, in which the scores are left that `layout` asks for.
        cell: the functions from the projections to the recurrence's inputs and the output gate.
        operands: the projections that the cell reads.
        gate: the projection of its output gate, or None.
        parameters: the cell's parameters, a number for each channel.
        layout: the resets, and the tokens that are skipped: these leave the state as it is.
        initial: the state of the forward channels before the first token; zero if None.
        settings: the settings of the scan.

    Returns:
        The gated states, and in float32 the state after the last token that each channel read.
    """
    if layout.skipped is not None:
        skipped = layout.skipped[..., None]
        operands = tuple(
            jnp.where(skipped, jnp.asarray(identity, operand.dtype), operand)
            for operand, identity in zip(operands, cell.identity_operands, strict=True)
        )
    resets = (layout.forward_reset,)
    if settings.bidirectional:
        resets = (layout.forward_reset, layout.reverse_reset)
    if layout.influence is not None:
        arrays = _cell_recurrence(cell, operands, gate, parameters, resets)
        leave_influence(mixer, layout.influence, arrays, resets)
    if settings.bidirectional and initial is not None:
        # What comes after the last token is not known yet: the channels in reverse start from zero.
        initial = jnp.concatenate([initial, jnp.zeros_like(initial)], axis=-1)
    return sharded_recurrence(
        make_recurrence(cell, settings),
        RecurrenceOperands((operands, gate), parameters),
        initial,
        resets,
        bidirectional=settings.bidirectional,
    )


def _cell_recurrence(
    cell: Cell,
    operands: tuple[StateSequence, ...],
    gate: StateSequence | None,
    parameters: tuple[Float[Array, " channels"], ...],
    resets: tuple[TokenMask, ...],
) -> RecurrenceArrays:
    """Return the arrays that the kernels never keep; arguments are those of `recurrent_layer`."""
    parameters, operands, gate = jax.tree.map(
        lambda array: array.astype(jnp.float32), (parameters, operands, gate)
    )
    channels = operands[0].shape[-1] // len(resets)
    not_reset = jnp.concatenate(
        [jnp.broadcast_to(~reset[..., None], (*reset.shape, channels)) for reset in resets], axis=-1
    )
    decay, entry = cell.recurrence_inputs(parameters, operands, not_reset)
    return RecurrenceArrays(decay, entry, gate, cell.readout)


def make_recurrence(cell: Cell, settings: ScanSettings) -> Recurrence:
    """Return the recurrence of a cell, whose operands are ((operands, gate), parameters)."""

    def scan(
        direction: str, inputs: RecurrenceOperands, h0: RowState | None, resets: Resets
    ) -> tuple[StateSequence, RowState]:
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

    return Recurrence(scan, partial(_decay_product, cell))


def _decay_product(cell: Cell, direction: str, inputs: RecurrenceOperands, resets: Resets) -> RowState:
    """Return the product of the decays over the row, zero where a reset is among them."""
    operands, _ = inputs.sequences
    vectors, operands = jax.tree.map(lambda array: array.astype(jnp.float32), (inputs.vectors, operands))
    decay, _ = cell.recurrence_inputs(vectors, operands, None)
    halves = jnp.split(decay, 2, axis=-1) if direction == "both" else (decay,)
    products = [
        jnp.prod(jnp.where(reset[..., None], 0.0, half), axis=1)
        for half, reset in zip(halves, resets, strict=True)
    ]
    return jnp.concatenate(products, axis=-1)
