"""selective_scan for TPUs, in Mosaic: one channel per lane, each of its states in a separate register.

A grid step holds a block in time of up to 1024 channels: the rows of a register times its lanes. It
processes spans of 128 steps. In a span, it first adds dt's bias and applies the softplus, on tiles of 16
rows. Then it runs the recurrence step by step, four states at a time. Finally it applies D and the gate, on
tiles again. So a step of a state costs one exponential and six operations on a full register, and sums over
states are additions of registers.

A strided load from scratch memory turns one row of a tile into a register, see `tpu_steps`. B and C come as
[2 N, length], with time on the lanes. A register holds four states of B above the same four of C. So one
lane of it, spread over all lanes, has the weights of one step for four states, and a load spreads one row.

The gradient reads the state that enters each span, recomputes the states of the span into scratch memory
(Chen et al. 2016; for scans Gu and Dao 2023, appendix D), and runs the recurrence of the cotangents. Each
block of channels writes its terms of the cotangents of B and C. They are summed afterwards in a fixed
order, so two runs agree bit for bit.

Memory accesses per element, each of u's size: 4 forward (u, dt, z, y), 7 backward (u, dt, z, dy and the
three cotangents). Also N / 128 float32 numbers for the states that enter spans, once in each pass.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.linear_scan import tpu as linear_scan_tpu
from pallas_kernels.linear_scan.padding import pad_length
from pallas_kernels.linear_scan.tpu_call import LENGTH_UNIT, Interpret, pack_resets
from pallas_kernels.linear_scan.tpu_chunks import LANES, TILE
from pallas_kernels.selective_scan import tpu_steps
from pallas_kernels.selective_scan.inputs import (
    Padding,
    SelectiveScanInputs,
    Sequence,
    State,
    max_tpu_states,
)
from pallas_kernels.selective_scan.tpu_call import MAX_COLUMNS, call_kernel, make_grid
from pallas_kernels.selective_scan.tpu_steps import (
    PRODUCTS,
    SPAN,
    STATES,
    STRIDE,
    SUBLANES,
    groups_together,
)

__all__ = ["backward", "forward", "suits"]

# The least magnitude of a rate. Times the step of a reset, exp2 of it is 0.
LEAST_RATE = 1e-30
# Bytes of the blocks of a grid step. Double buffering takes twice this; the rest is for scratch memory.
FORWARD_BYTES, BACKWARD_BYTES = 4 << 20, 2 << 20
# Registers are half full if a channel's states, in the dtype of the sequences, take more bytes than this.
MOST_STATE_BYTES = 64


def suits(inputs: SelectiveScanInputs, direction: str) -> bool:
    """Return whether a call needs no padding of sequences, and its blocks fit the chip's memory."""
    fits = inputs.A.shape[0] <= max_tpu_states(inputs.dtype)
    return fits and linear_scan_tpu.suits(inputs.u.shape, direction)


def forward(
    inputs: SelectiveScanInputs, *, direction: str, interpret: Interpret = False
) -> tuple[Sequence, State, Float[Array, "batch spans padded_N column_blocks columns 128"]]:
    """Return (y, last state, state before each span of time).

    Args:
        inputs: the arrays, sequences in float32 or bfloat16. Sizes that do not fit the blocks are padded,
            at the cost of a copy of every operand.
        direction: "forward", "reverse" or "both".
        interpret: True, or parameters, for the TPU interpreter, which runs on any platform, slowly.

    Returns:
        y in the dtype of u; in float32 the state after the last step read and those before each span.

    Raises:
        ValueError: N is larger than `max_tpu_states`.
    """
    pad = _Padding(inputs, direction)
    operands = pad.operands()
    grid = pad.grid(operands[0][2].shape, FORWARD_BYTES // 4, interpret)
    found = call_kernel(
        grid,
        tpu_steps.forward,
        pack_resets(grid, inputs.resets),
        [*operands, ("h0", "state", pad.state(inputs.h0))],
        [
            ("y", "block", inputs.u.dtype),
            ("kept_h0", "kept", jnp.float32),
            ("last", "state", jnp.float32),
        ],
        scratch=_scratch(grid, pad.states, ["decay_dt", "dt_u", "sums"]),
        reverse_time=False,
        operations=(6, 1),
    )
    return pad.crop(found["y"]), pad.crop_state(found["last"]), found["kept_h0"]


def backward(
    inputs: SelectiveScanInputs,
    kept_h0: Float[Array, "batch spans padded_N column_blocks columns 128"],
    dy: Sequence,
    dlast: State,
    *,
    direction: str,
    interpret: Interpret = False,
) -> SelectiveScanInputs:
    """Return the cotangents of the inputs: in float32 except for u, dt and z, and None for the resets.

    Args:
        inputs: as for `forward`.
        kept_h0: the state before each span, from `forward`.
        dy: the cotangent of y.
        dlast: the cotangent of the last state.
        direction: as for `forward`.
        interpret: as for `forward`.
    """
    pad = _Padding(inputs, direction)
    operands = pad.operands()
    grid = pad.grid(operands[0][2].shape, BACKWARD_BYTES // 7, interpret)
    optional = [("dz", "block", inputs.z.dtype)] if inputs.z is not None else []
    if inputs.dt_bias is not None:
        optional.append(("ddt_bias", "row", jnp.float32))
    sequences = ["decay_dt", "dt_u", "plain_dt", "dv", "g_B", "dlog_A"]
    sequences += [] if inputs.z is None else ["scanned"]
    found = call_kernel(
        grid,
        tpu_steps.backward,
        pack_resets(grid, inputs.resets),
        [
            *operands,
            ("dy", "block", pad.sequence(dy)),
            ("kept_h0", "kept", kept_h0),
            ("dlast", "state", pad.state(dlast)),
        ],
        [
            ("du", "block", inputs.u.dtype),
            ("ddt", "block", inputs.dt.dtype),
            ("dcolumns", "partial", jnp.float32),
            ("dA", "state", jnp.float32),
            ("dD", "row", jnp.float32),
            ("dh0", "state", jnp.float32),
            *optional,
        ],
        scratch={
            **_scratch(grid, pad.states, sequences),
            "states": (SPAN + 1, STATES, grid.columns, LANES),
            "products": (TILE * PRODUCTS, LANES),
        },
        reverse_time=True,
        operations=(20, 2),
    )
    dB, dC = pad.crop_columns(found["dcolumns"])
    return SelectiveScanInputs(
        u=pad.crop(found["du"]),
        dt=pad.crop(found["ddt"]),
        A=pad.crop_state(found["dA"]).sum(axis=0),
        B=dB,
        C=dC,
        D=pad.crop_row(found["dD"]),
        z=None if inputs.z is None else pad.crop(found["dz"]),
        dt_bias=None if inputs.dt_bias is None else pad.crop_row(found["ddt_bias"]),
        h0=pad.crop_state(found["dh0"]),
        resets=None,
    )


def _scratch(grid, states, sequences):
    """Return the shapes of the scratch memory of both passes, with a span for each of `sequences`."""
    return {
        "carry": (states, grid.columns, LANES),
        "fours": (2 * states, grid.rows),
        "weights": (groups_together(states // STATES) * SPAN * SUBLANES, LANES),
        **dict.fromkeys(sequences, (grid.columns * STRIDE, LANES)),
    }


class _Padding(Padding):
    """The padding for TPU blocks, and the operands of both passes."""

    def __init__(self, inputs, direction):
        super().__init__(inputs, direction, length_unit=LENGTH_UNIT, lanes=LANES, states_unit=STATES)
        self.direction = direction

    def grid(self, shape, block_bytes, interpret):
        """Return the grid for padded sequences of `shape`, in blocks of `block_bytes` where possible."""
        dtype, states = self.inputs.dtype, self.inputs.A.shape[0]
        if states > max_tpu_states(dtype):
            raise ValueError(
                f"selective_scan: N must be at most {max_tpu_states(dtype)} for pallas_tpu with sequences "
                f"of {dtype}; found {states}"
            )
        itemsize = dtype.itemsize
        max_columns = MAX_COLUMNS if self.states * itemsize <= MOST_STATE_BYTES else MAX_COLUMNS // 2
        return make_grid(shape, block_bytes // itemsize, self.direction, interpret, max_columns)

    def operands(self):
        """Return (name, kind, array) for each input that both passes read."""
        u, dt, A, B, C, D, z, dt_bias, *_ = self.inputs
        columns = jnp.concatenate([self._columns(B), self._columns(C)], axis=1)
        # exp(dt A) = exp2(dt A log2(e)). A rate of 0 becomes a tiny one, which matters only at resets.
        rates = self.state(A[None])[0] * math.log2(math.e)
        rates = jnp.where(jnp.abs(rates) < LEAST_RATE, -LEAST_RATE, rates)
        operands = [
            ("u", "block", self.sequence(u)),
            ("dt", "block", self.steps(dt)),
            ("columns", "columns", columns),
            ("A", "matrix", rates),
            ("D", "vector", self.channels(D[None])),
        ]
        if z is not None:
            operands.append(("z", "block", self.sequence(z)))
        if dt_bias is not None:
            operands.append(("dt_bias", "vector", self.channels(dt_bias.astype(jnp.float32)[None])))
        return operands

    def crop_row(self, array):
        return self.crop_channels(array[:, 0]).sum(axis=0)

    def crop_columns(self, partial):
        """Sum dB and dC over the blocks of channels; return both as [batch, length, N]."""
        states, length = self.inputs.A.shape[0], self.inputs.u.shape[1]
        columns = partial.sum(axis=0)[:, :, :length]
        columns = columns.reshape(columns.shape[0], -1, 2, STATES, length)
        return (
            columns[:, :, which].reshape(-1, self.states, length)[:, :states].swapaxes(1, 2)
            for which in (0, 1)
        )

    def _columns(self, array):
        missing = self.states - array.shape[2]
        array = jnp.pad(pad_length(array, LENGTH_UNIT, 0.0), ((0, 0), (0, 0), (0, missing)))
        return array.swapaxes(1, 2)
