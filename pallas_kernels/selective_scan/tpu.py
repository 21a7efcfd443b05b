"""selective_scan for TPUs, in Mosaic: the N states of a channel on the sublanes, one step at a time.

A grid step holds a block of rows in time of up to 512 channels. A state [N, channels] is in registers, and
a step of it costs one exponential and a few operations a register; neighbouring groups of channels fill
the latency. B and C come as [2 N, length] with time on the lanes, so that their minor axis is whole in
memory; the 16 steps of a tile are rotated to the first lanes, and one lane spread over all is B_t. dt's
bias and softplus, D and the gate are computed on the tile: u, dt and z are read, y is written, and nothing
N times as wide ever leaves the chip but the state that enters each block of time.

The gradient reads those, runs the recurrence of a block again to have the state that enters each tile of
16 steps (Chen et al. 2016; for scans Gu and Dao 2023, appendix D), then takes the tiles from the last one
to the first: each time the states and decays of 16 steps, and the cotangents back through them. Each
block of channels writes what it adds to the cotangents of B and C; they are summed afterwards in their
order, so that two runs agree bit for bit.

Memory accesses an element, of which each is u's size: 4 forward (u, dt, z, y), 7 backward (u, dt, z, dy and
the three cotangents).
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.linear_scan.padding import pad_length
from pallas_kernels.linear_scan.tpu import suits
from pallas_kernels.linear_scan.tpu_call import LENGTH_UNIT, Interpret, pack_resets
from pallas_kernels.linear_scan.tpu_chunks import LANES, TILE
from pallas_kernels.selective_scan import tpu_steps
from pallas_kernels.selective_scan.inputs import Padding, SelectiveScanInputs, Sequence, State
from pallas_kernels.selective_scan.tpu_call import STATES_UNIT, Scratch, call_kernel, make_grid

__all__ = ["backward", "forward", "suits"]


def forward(
    inputs: SelectiveScanInputs, *, direction: str, interpret: Interpret = False
) -> tuple[Sequence, State, Float[Array, "batch row_blocks padded_N padded_channels"]]:
    """Return (y, last state, state before each block of time).

    Args:
        inputs: the arrays, sequences in float32 or bfloat16; sizes that do not suit are padded, at the cost
            of a copy of every operand.
        direction: "forward", "reverse" or "both".
        interpret: whether to run in the TPU interpreter, on any platform, slowly; or its parameters.

    Returns:
        y in the type of u; the state after the last step read, and those before each block, float32.
    """
    pad = _Padding(inputs, direction)
    operands = pad.operands()
    grid = make_grid(operands[0][2].shape, pad.dtype, direction, interpret)
    found = call_kernel(
        grid,
        tpu_steps.forward,
        pack_resets(grid, inputs.resets),
        [*operands, ("h0", "state", pad.state(inputs.h0))],
        [
            ("y", "block", inputs.u.dtype),
            ("block_h0", "boundary", jnp.float32),
            ("last", "state", jnp.float32),
        ],
        scratch={"carry": Scratch((pad.states,))},
        reverse_time=False,
        operations=(6, 1),
    )
    return pad.crop(found["y"]), pad.crop_state(found["last"]), found["block_h0"]


def backward(
    inputs: SelectiveScanInputs,
    block_h0: Float[Array, "batch row_blocks padded_N padded_channels"],
    dy: Sequence,
    dlast: State,
    *,
    direction: str,
    interpret: Interpret = False,
) -> SelectiveScanInputs:
    """Return the cotangents of the inputs, those of all but u, dt and z in float32; None for the resets.

    Args:
        inputs: as for `forward`.
        block_h0: the state before each block, from `forward`.
        dy: the cotangent of y.
        dlast: the cotangent of the last state.
        direction: as for `forward`.
        interpret: as for `forward`.
    """
    pad = _Padding(inputs, direction)
    operands = pad.operands()
    grid = make_grid(operands[0][2].shape, pad.dtype, direction, interpret)
    optional = [("dz", "block", inputs.z.dtype)] if inputs.z is not None else []
    if inputs.dt_bias is not None:
        optional.append(("ddt_bias", "row", jnp.float32))
    found = call_kernel(
        grid,
        tpu_steps.backward,
        pack_resets(grid, inputs.resets),
        [
            *operands,
            ("dy", "block", pad.sequence(dy)),
            ("block_h0", "boundary", block_h0),
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
            "carry": Scratch((pad.states,)),
            "tile_h0": Scratch((grid.rows // TILE, pad.states)),
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


class _Padding(Padding):
    """The padding of a TPU's blocks, and the operands of both passes."""

    def __init__(self, inputs, direction):
        super().__init__(inputs, direction, length_unit=LENGTH_UNIT, lanes=LANES, states_unit=STATES_UNIT)

    def operands(self):
        """Return the (name, kind, array) of what both passes read of the inputs."""
        u, dt, A, B, C, D, z, dt_bias, *_ = self.inputs
        columns = jnp.concatenate([self._columns(B), self._columns(C)], axis=1)
        operands = [
            ("u", "block", self.sequence(u)),
            ("dt", "block", self.steps(dt)),
            ("columns", "columns", columns),
            ("A", "matrix", self.state(A[None])[0]),
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
        """Return the sums of dB and dC over the blocks of channels, [batch, length, N]."""
        states, length = self.inputs.A.shape[0], self.inputs.u.shape[1]
        columns = partial.sum(axis=0)[:, :, :length].swapaxes(1, 2)
        return columns[..., :states], columns[..., self.states : self.states + states]

    def _columns(self, array):
        missing = self.states - array.shape[2]
        array = jnp.pad(pad_length(array, LENGTH_UNIT, 0.0), ((0, 0), (0, 0), (0, missing)))
        return array.swapaxes(1, 2)
