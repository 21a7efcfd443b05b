"""What every recurrent mixer shares: its limits, its cache, the scan in the directions of a layout."""

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
from birdie_jax.models.gate_statistics import is_asked_for, leave_gate_statistics
from birdie_jax.models.influence import leave_influence
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
    """The base of the sections of recurrent mixers: the limits of a mesh."""

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
        """Check that the implementation of the scan is available for the platform."""
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


class RecurrentAttributes(TypedDict):
    """The attributes that every recurrent mixer has."""

    features: int
    state: int
    bidirectional: bool
    dtype: jnp.dtype
    scan_dtype: jnp.dtype
    scan_implementation: str | None


def recurrent_attributes(config: ModelConfig) -> RecurrentAttributes:
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
        mixer: the linen module of the layer, which stores the scores that `layout` requests.
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
    y, last = sharded_recurrence(
        make_recurrence(cell, settings),
        RecurrenceOperands((operands, gate), parameters),
        initial,
        resets,
        bidirectional=settings.bidirectional,
    )
    if is_asked_for(mixer):
        arrays = _cell_recurrence(cell, operands, gate, parameters, resets)
        leave_gate_statistics(mixer, arrays.decay, last, layout)
    return y, last


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


class Recurrence(NamedTuple):
    """A recurrent layer that treats every row and every channel independently.

    Both functions take the direction of reading, "forward", "reverse" or "both" (the second half of the
    channels in reverse), and the resets of that direction or of each of both.

    Attributes:
        scan: (direction, inputs, h0, resets) -> (y, last). h0 is the state before the first token read,
            [rows, channels], or None for zero; y is a sequence, and `last` the state after the last token
            read, float32.
        product: (direction, inputs, resets) -> the product of all decays, float32; a decay counts as zero
            at a reset.
        state_axes: the logical axes of a state; where there are more than two, h0 is never None.
        apply: (product, state) -> the state after the decays: their product number by number, or where a
            decay is a matrix, of matrices.
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
    """Return (y, last) of `recurrence` over whole rows, divided over the devices of the mesh in force.

    Where half of the channels is read in reverse and channels are divided too, an even number of devices
    has channels of one direction each.

    Args:
        recurrence: the layer.
        inputs: the arrays that it reads.
        h0: the state before the first token read; zero if None.
        resets: the forward reset, and where `bidirectional` the reverse reset.
        bidirectional: whether the second half of the channels is read in reverse.

    Raises:
        ValueError: `bidirectional`, and an odd number of devices divides the channels.
    """
    rows, length, channels = jax.tree.leaves(inputs.sequences)[0].shape[:3]
    # Keys may have fewer heads than values: a mesh divides all or none.
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
