"""Shared parts of recurrent mixers: limits, cache, and the scan in the directions of a layout."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import mul
from typing import NamedTuple, TypedDict, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from birdie_jax.array_types import RecurrentSequence, RowState, StateSequence, TokenMask
from birdie_jax.config_sections import Config, MixerConfig, ModelConfig, Require
from birdie_jax.models.axes import (
    LogicalAxes,
    dividing_axes,
    logical_shard_map,
    mesh_size,
    must_divide,
)
from birdie_jax.models.gate_statistics import is_requested, sow_gate_statistics
from birdie_jax.models.influence import sow_influence
from birdie_jax.models.layout import Layout
from birdie_jax.models.platforms import check_implementation
from birdie_jax.models.recurrence_influence import RecurrenceArrays
from birdie_jax.models.sequence_parallel import (
    SEQUENCE,
    Apply,
    LocalRecurrence,
    RecurrenceOperands,
    Resets,
    sequence_parallel,
)
from pallas_kernels.gated_scan import Cell, gated_scan
from pallas_kernels.linear_scan import IMPLEMENTATIONS

TENSOR = "tensor"

StateAndLast = tuple[RecurrentSequence, RowState]
Result = TypeVar("Result")


@dataclass(frozen=True)
class RecurrentConfig(MixerConfig):
    """The base section of recurrent mixers, with checks of the spacing and of the mesh."""

    @property
    def has_linear_scan(self) -> bool:
        """Whether the recurrence is `pallas_kernels.linear_scan`."""
        return True

    def conv_taps(self, model: ModelConfig) -> int:
        """Return the taps of the short convolution in a model; 0 without one."""
        del model
        return 0

    def check_model(self, config: Config, require: Require) -> None:
        """Check that the spacing between samples is as wide as the reach of the convolution."""
        reach = max(self.conv_taps(config.model) - 1, 0)
        allowed = f"at least model.{self.section}.conv_width - 1 = {reach}"
        require(config.batching.spacing >= reach, "batching.spacing", allowed)

    def check_platform(self, model: ModelConfig, platform: str, require: Require) -> None:
        """Check that the implementation of the scan is available for the platform."""
        chosen = model.scan_implementation
        check_implementation(require, "model.scan_implementation", chosen, IMPLEMENTATIONS, platform)

    def mesh_problem(self, model: ModelConfig, length: int, axis: str, size: int) -> str | None:
        """Return why an axis cannot divide the recurrence: `tensor` divides channels, `sequence` tokens."""
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
        dtype: the type of decays, inputs and states in memory; the carry is float32.
        implementation: the implementation of `gated_scan`; None = the best one for the platform.
    """

    bidirectional: bool
    dtype: jnp.dtype
    implementation: str | None


class RecurrentAttributes(TypedDict):
    """The attributes of every recurrent mixer."""

    features: int
    state: int
    bidirectional: bool
    dtype: jnp.dtype
    scan_dtype: jnp.dtype
    scan_implementation: str | None


def recurrent_attributes(config: ModelConfig) -> RecurrentAttributes:
    """Return the attributes of every recurrent mixer, from the fields that all models use."""
    return {
        "features": config.features,
        "state": config.state,
        "bidirectional": config.bidirectional,
        "dtype": jnp.dtype(config.dtype),
        "scan_dtype": jnp.dtype(config.scan_dtype),
        "scan_implementation": config.scan_implementation or None,
    }


class RecurrentCache(NamedTuple):
    """The decoding cache, of constant size.

    Attributes:
        state: the float32 state of the forward channels after the last token (all of them in a causal
            model); channels are its last axis.
        conv_tail: the last conv_width - 1 inputs of the convolution; empty without a convolution.
    """

    state: RowState
    conv_tail: Float[Array, "rows tail channels"]

    def updated(
        self,
        last: Float[Array, "rows *numbers channels"],
        conv_tail: Float[Array, "rows tail features"] | None,
    ) -> "RecurrentCache":
        """Return the cache after a call that ends in the state `last`; a tail of None keeps the old one."""
        tail = self.conv_tail if conv_tail is None else conv_tail
        return RecurrentCache(last[..., : self.state.shape[-1]], tail)


def empty_recurrent_cache(
    rows: int, channels: int, tail: tuple[int, int], dtype: jnp.dtype
) -> RecurrentCache:
    """Return the cache for `rows` new samples.

    Args:
        rows: the number of samples, one per row.
        channels: the number of forward channels.
        tail: the steps and channels of the convolution's tail.
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
    """Return the result of a recurrent layer between its projections, with the resets of `layout`.

    If `bidirectional`, the second half of the channels runs in reverse (Birdie paper, section 3.1), as h_t
    = a_t * h_{t+1} + x_t with a_t set to zero at a reverse reset.

    Args:
        mixer: the linen module of the layer, which stores the scores that `layout` requests.
        cell: the functions from projections to the inputs of the recurrence and the output gate.
        operands: the projections that the cell reads.
        gate: the projection of its output gate, or None.
        parameters: the cell's parameters, one number per channel.
        layout: the resets, and the skipped tokens, which leave the state unchanged.
        initial: the state of the forward channels before the first token; zero if None.
        settings: the settings of the scan.

    Returns:
        The gated states, and in float32 each channel's state after the last token it read.
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
        sow_influence(mixer, layout.influence, arrays, resets)
    if settings.bidirectional and initial is not None:
        # The tokens after the last one are not known yet, so reverse channels start from zero.
        initial = jnp.concatenate([initial, jnp.zeros_like(initial)], axis=-1)
    y, last = sharded_recurrence(
        make_recurrence(cell, settings),
        RecurrenceOperands((operands, gate), parameters),
        initial,
        resets,
        bidirectional=settings.bidirectional,
    )
    if is_requested(mixer):
        arrays = _cell_recurrence(cell, operands, gate, parameters, resets)
        sow_gate_statistics(mixer, arrays.decay, last, layout)
    return y, last


def _cell_recurrence(
    cell: Cell,
    operands: tuple[StateSequence, ...],
    gate: StateSequence | None,
    parameters: tuple[Float[Array, " channels"], ...],
    resets: tuple[TokenMask, ...],
) -> RecurrenceArrays:
    """Return the arrays that the kernels do not store; arguments are as in `recurrent_layer`."""
    parameters, operands, gate = jax.tree.map(
        lambda array: array.astype(jnp.float32), (parameters, operands, gate)
    )
    channels = operands[0].shape[-1] // len(resets)
    not_reset = jnp.concatenate(
        [jnp.broadcast_to(~reset[..., None], (*reset.shape, channels)) for reset in resets], axis=-1
    )
    decay, entry = cell.recurrence_inputs(parameters, operands, not_reset)
    return RecurrenceArrays(decay, entry, gate, cell.readout)


class Recurrence(NamedTuple):
    """A recurrent layer that treats every row and every channel independently.

    Both functions take the direction, "forward", "reverse" or "both" (the second half of the channels in
    reverse), and the resets of that direction or of both.

    Attributes:
        scan: (direction, inputs, h0, resets) -> (y, last). h0 is the state before the first token, [rows,
            channels], or None for zero. y is a sequence, and `last` is the state after the last token,
            float32.
        product: (direction, inputs, resets) -> the product of all decays, float32; a decay is zero at a
            reset.
        state_axes: the logical axes of a state; with more than two, h0 is never None.
        apply: (product, state) -> the state after the decays: an elementwise product, or a matrix product
            if decays are matrices.
        apply_transposed: (product, cotangent) -> the cotangent of the state before the decays.
    """

    scan: Callable[[str, RecurrenceOperands, RowState | None, Resets], StateAndLast]
    product: Callable[[str, RecurrenceOperands, Resets], Float[Array, "..."]]
    state_axes: LogicalAxes = ("rows", "inner")
    apply: Apply = mul
    apply_transposed: Apply = mul


def sharded_recurrence(
    recurrence: Recurrence,
    inputs: RecurrenceOperands,
    h0: RowState | None,
    resets: Resets,
    *,
    bidirectional: bool,
) -> StateAndLast:
    """Return (y, last) of `recurrence` over whole rows, divided over the devices of the current mesh.

    If half of the channels runs in reverse and devices divide the channels, their number must be even: each
    device has channels of one direction.

    Args:
        recurrence: the layer.
        inputs: the arrays that it reads.
        h0: the state before the first token; zero if None.
        resets: the forward reset, and if `bidirectional` the reverse reset.
        bidirectional: whether the second half of the channels runs in reverse.

    Raises:
        ValueError: `bidirectional`, and an odd number of devices divides the channels.
    """
    rows, length, channels = jax.tree.leaves(inputs.sequences)[0].shape[:3]
    # Keys may have fewer heads than values. A mesh divides both or neither.
    divided = all(dividing_axes("inner", leaf.shape[2]) for leaf in jax.tree.leaves(inputs.sequences))
    pieces = mesh_size(TENSOR) if divided else 1
    shards = mesh_size(SEQUENCE) if dividing_axes("length", length) else 1
    if bidirectional and pieces > 1 and pieces % 2:
        raise ValueError(
            f"recurrence: found {pieces} devices along {TENSOR} for channels of two directions; allowed: 1 "
            "or an even number"
        )

    def in_own_directions(read: Callable[[str, Resets], Result], resets: Resets) -> Result:
        if not bidirectional:
            return read("forward", resets)
        if pieces == 1:
            return read("both", resets)
        forward, reverse = resets
        return jax.lax.cond(
            jax.lax.axis_index(TENSOR) < pieces // 2,
            lambda: read("forward", (forward,)),
            lambda: read("reverse", (reverse,)),
        )

    def scan_own(resets: Resets, inputs: RecurrenceOperands, h0: RowState | None) -> StateAndLast:
        return in_own_directions(lambda direction, own: recurrence.scan(direction, inputs, h0, own), resets)

    def product_of_own(resets: Resets, inputs: RecurrenceOperands) -> Float[Array, "..."]:
        return in_own_directions(lambda direction, own: recurrence.product(direction, inputs, own), resets)

    def scan(sequences, vectors, shared, h0, resets):
        inputs = RecurrenceOperands(sequences, vectors, shared)
        if shards == 1:
            return scan_own(resets, inputs, h0)
        axis = recurrence.state_axes.index("inner")
        channels = h0.shape[axis]
        if not bidirectional:
            reverse = jnp.zeros(channels, bool)
        elif pieces == 1:
            reverse = jnp.arange(channels) >= channels // 2
        else:
            reverse = jnp.full(channels, jax.lax.axis_index(TENSOR) >= pieces // 2)
        reverse = reverse.reshape(-1, *(1,) * (h0.ndim - 1 - axis))
        local = LocalRecurrence(scan_own, product_of_own, recurrence.apply, recurrence.apply_transposed)
        return sequence_parallel(local, inputs, h0, resets, reverse)

    if shards > 1 and h0 is None:
        h0 = jnp.zeros((rows, channels), jnp.float32)
    sequence_axes, state_axes = ("rows", "length", "inner"), recurrence.state_axes
    scan_rows = logical_shard_map(
        scan,
        (*inputs, h0, resets),
        in_axes=[sequence_axes, ("inner",), ("rows", "length"), state_axes, ("rows", "length")],
        out_axes=[sequence_axes, state_axes],
    )
    return scan_rows(*inputs, h0, resets)


def make_recurrence(cell: Cell, settings: ScanSettings) -> Recurrence:
    """Return the recurrence of a cell, with the operands ((operands, gate), parameters)."""

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
    """Return the product of the decays over the row, zero if a reset is among the tokens."""
    operands, _ = inputs.sequences
    vectors, operands = jax.tree.map(lambda array: array.astype(jnp.float32), (inputs.vectors, operands))
    decay, _ = cell.recurrence_inputs(vectors, operands, None)
    halves = jnp.split(decay, 2, axis=-1) if direction == "both" else (decay,)
    products = [
        jnp.prod(jnp.where(reset[..., None], 0.0, half), axis=1)
        for half, reset in zip(halves, resets, strict=True)
    ]
    return jnp.concatenate(products, axis=-1)
