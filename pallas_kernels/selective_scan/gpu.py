"""selective_scan for NVIDIA GPUs from Hopper on, in Mosaic GPU: four and seven memory accesses per element.

A block of 128 threads scans 128 channels of one batch row over the whole sequence, one channel per thread.
Tiles of 16 steps stream through shared memory by asynchronous copies. Within a tile, the kernel loops over
the N states. A thread holds the steps, the inputs and the sums of the 16 outputs in registers, and runs the
16 steps for one state at a time, so the number of registers does not grow with N. The 16 exponentials are
independent of each other. All threads read the scalars B_t and C_t from the same place in shared memory.

The gradient reads the states that the forward pass kept, every 128 steps where memory allows. It recomputes
the states that enter each tile (Chen et al. 2016; for scans Gu and Dao 2023, appendix D) and keeps them in
shared memory. Then it visits the tiles from the last one read to the first. Within a tile, it holds the
decays and values of one state at a time in registers. Each thread writes its channel's terms of the
cotangents of B and C to shared memory. Then the threads sum the terms of all channels, and XLA sums the
results of the blocks. Every sum has a fixed order, so two runs agree bit for bit.

The kernel computes each exponential once forward and twice backward. An element needs 16, and a
multiprocessor computes 16 per clock, so the exponentials bound the forward pass, not memory: 128 us at
[8, 2048, 2048] on an H200, where memory would allow 63.

A call with few rows and channels has few blocks: [1, 16384, 2048] has 16 for 132 multiprocessors. The
kernel is for batches that fill the chip.
"""

import math
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from pallas_kernels.linear_scan.padding import pad_length, round_up
from pallas_kernels.selective_scan import gpu_backward, gpu_forward
from pallas_kernels.selective_scan.gpu_tile import (
    STATES_UNIT,
    SUMS,
    THREADS,
    TILE,
    BlockIndices,
    GpuGrid,
    make_grid,
)
from pallas_kernels.selective_scan.inputs import (
    MAX_GPU_STATES,
    Padding,
    SelectiveScanInputs,
    Sequence,
    State,
)


def call_kernel(
    grid: GpuGrid,
    kernel: ModuleType,
    sequences: dict[str, jax.Array],
    others: dict[str, jax.Array],
    results: dict[str, jax.ShapeDtypeStruct],
    *,
    with_resets: bool,
) -> dict[str, jax.Array]:
    """Run a pass over padded operands, and return its results by name.

    Args:
        grid: the grid of the call.
        kernel: `gpu_forward` or `gpu_backward`: the shared memory of a block, and its program.
        sequences: the operands that stream in by tiles, [batch, tiles, 16, channels].
        others: all other operands: the columns, A in base 2, D, the bias, states; see the kernels.
        results: the shapes and dtypes of the results.
        with_resets: whether the columns contain reset flags.
    """
    batch, _, _, channels = sequences["u"].shape
    names = [*sequences, *others, *results]
    directions = grid.directions

    def body(*given, **scratch):
        refs = dict(zip(names, given, strict=True)) | scratch
        row, column = jax.lax.axis_index("batch"), jax.lax.axis_index("channels")
        # Each direction is a separate program, so the order of the steps is static.
        for part, direction in enumerate(directions):
            lanes = pl.ds(column * THREADS, THREADS)
            block = BlockIndices(row, lanes, column, part, direction == "reverse")
            run = partial(kernel.run, grid, refs, block, with_resets=with_resets)
            is_mine = (column * THREADS >= channels // 2) == bool(part)
            run() if len(directions) == 1 else pl.when(is_mine)(run)

    found = plgpu.kernel(
        body,
        out_type=list(results.values()),
        grid=(batch, channels // THREADS),
        grid_names=("batch", "channels"),
        scratch_types=kernel.scratch(grid, sequences, results),
        # The passes set their own barriers. The approximate exponential has an error of 2 ** -22.
        compiler_params=plgpu.CompilerParams(
            lowering_semantics=plgpu.LoweringSemantics.Lane, unsafe_no_auto_barriers=True, approx_math=True
        ),
        interpret=grid.interpret,
    )(*sequences.values(), *others.values())
    return dict(zip(results, found, strict=True))


def tiled(grid: GpuGrid, array: jax.Array) -> jax.Array:
    """Return [batch, length, width] as [batch, tiles, 16, width]."""
    return array.reshape(array.shape[0], grid.tiles, TILE, array.shape[-1])


def shape_of(shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of a result."""
    return jax.ShapeDtypeStruct(shape, dtype)


def forward(
    inputs: SelectiveScanInputs, *, direction: str, interpret: object = None
) -> tuple[Sequence, State, Float[Array, "batch blocks padded_N padded_channels"]]:
    """Return (y, last state, state before each block of time).

    Args:
        inputs: the arrays, sequences in float32 or bfloat16. Sizes that do not fit the blocks are padded,
            at the cost of a copy of every operand.
        direction: "forward", "reverse" or "both".
        interpret: the parameters of the Mosaic GPU interpreter, which runs on any platform, slowly.

    Returns:
        y in the dtype of u; in float32 the state after the last step read and those before each block.

    Raises:
        ValueError: N is larger than `MAX_GPU_STATES`.
    """
    call = _Call(inputs, direction, interpret)
    pad, grid = call.pad, call.grid
    batch, _, _, channels = call.sequences["u"].shape
    state = (batch, grid.states, channels)
    found = call_kernel(
        grid,
        gpu_forward,
        call.sequences,
        call.others | {"h0": pad.state(inputs.h0)},
        {
            "y": shape_of(call.sequences["u"].shape, inputs.u.dtype),
            "block_h0": shape_of((batch, grid.blocks, *state[1:])),
            "last": shape_of(state),
        },
        with_resets=inputs.resets is not None,
    )
    return call.crop(found["y"]), pad.crop_state(found["last"]), found["block_h0"]


def backward(
    inputs: SelectiveScanInputs,
    block_h0: Float[Array, "batch blocks padded_N padded_channels"],
    dy: Sequence,
    dlast: State,
    *,
    direction: str,
    interpret: object = None,
) -> SelectiveScanInputs:
    """Return the cotangents of the inputs: in float32 except for u, dt and z, and None for the resets.

    Args:
        inputs: as for `forward`.
        block_h0: the state before each block, from `forward`.
        dy: the cotangent of y.
        dlast: the cotangent of the last state.
        direction: as for `forward`.
        interpret: as for `forward`.
    """
    call = _Call(inputs, direction, interpret)
    pad, grid = call.pad, call.grid
    sequences = call.sequences | {"dy": tiled(grid, pad.sequence(dy))}
    shape = sequences["u"].shape
    batch, _, _, channels = shape
    state = (batch, grid.states, channels)
    sums = (channels // THREADS, batch, grid.tiles, grid.states // STATES_UNIT, SUMS)
    results = {
        "du": shape_of(shape, inputs.u.dtype),
        "ddt": shape_of(shape, inputs.dt.dtype),
        "dcolumns": shape_of(sums),
        "dA": shape_of(state),
        "dD": shape_of((batch, channels)),
        "dh0": shape_of(state),
    }
    if inputs.z is not None:
        results["dz"] = shape_of(shape, inputs.z.dtype)
    if inputs.dt_bias is not None:
        results["ddt_bias"] = shape_of((batch, channels))
    others = call.others | {"block_h0": block_h0, "dlast": pad.state(dlast)}
    found = call_kernel(
        grid, gpu_backward, sequences, others, results, with_resets=inputs.resets is not None
    )
    dB, dC = call.crop_columns(found["dcolumns"])
    return SelectiveScanInputs(
        u=call.crop(found["du"]),
        dt=call.crop(found["ddt"]),
        A=pad.crop_state(found["dA"]).sum(axis=0),
        B=dB,
        C=dC,
        D=pad.crop_channels(found["dD"]).sum(axis=0),
        z=None if inputs.z is None else call.crop(found["dz"]),
        dt_bias=None if inputs.dt_bias is None else pad.crop_channels(found["ddt_bias"]).sum(axis=0),
        h0=pad.crop_state(found["dh0"]),
        resets=None,
    )


def grid_of(inputs: SelectiveScanInputs, direction: str) -> GpuGrid:
    """Return the grid of a call. The inputs may be shapes and dtypes without values.

    Raises:
        ValueError: N is larger than `MAX_GPU_STATES`.
    """
    return _grid_of(inputs, direction, None)


def _grid_of(inputs, direction, interpret):
    states = inputs.A.shape[0]
    if states > MAX_GPU_STATES:
        raise ValueError(
            f"selective_scan: N must be at most {MAX_GPU_STATES} for pallas_gpu; found {states}"
        )
    return make_grid(
        inputs.u.shape[1],
        round_up(states, STATES_UNIT),
        direction,
        dtype=inputs.dtype,
        gated=inputs.z is not None,
        interpret=interpret,
    )


class _Call:
    """The padded operands of both passes, and functions that remove padding."""

    def __init__(self, inputs, direction, interpret):
        self.inputs = inputs
        self.grid = _grid_of(inputs, direction, interpret)
        self.pad = pad = Padding(
            inputs,
            direction,
            length_unit=TILE * self.grid.block_tiles,
            lanes=THREADS,
            states_unit=STATES_UNIT,
        )
        sequences = {"u": pad.sequence(inputs.u), "dt": pad.steps(inputs.dt)}
        if inputs.z is not None:
            sequences["z"] = pad.sequence(inputs.z)
        self.sequences = {name: tiled(self.grid, array) for name, array in sequences.items()}
        self.others = {
            "columns": tiled(self.grid, self._columns()),
            "A": pad.state(inputs.A[None])[0] * (1 / math.log(2)),
            "D": pad.channels(inputs.D),
        }
        if inputs.dt_bias is not None:
            self.others["dt_bias"] = pad.channels(inputs.dt_bias.astype(jnp.float32))

    def crop(self, array):
        return self.pad.crop(array.reshape(array.shape[0], -1, array.shape[-1]))

    def crop_columns(self, partial):
        """Sum dB and dC over the blocks of channels; return both as [batch, length, N]."""
        batch, length = self.inputs.u.shape[:2]
        totals = partial.sum(axis=0).reshape(batch, self.grid.tiles, -1, STATES_UNIT, 2, TILE)
        # [dB or dC, batch, tiles, step, pair of states, state of the pair]
        totals = totals.transpose(4, 0, 1, 5, 2, 3).reshape(2, batch, self.grid.tiles * TILE, -1)
        return totals[:, :, :length, : self.inputs.A.shape[0]]

    def _columns(self):
        """Return B, C and, for each direction, 0 at resets and 1 elsewhere, [batch, length, columns]."""
        missing = self.grid.states - self.inputs.A.shape[0]
        parts = [jnp.pad(array, ((0, 0), (0, 0), (0, missing))) for array in (self.inputs.B, self.inputs.C)]
        parts += [~reset[..., None] for reset in self.inputs.resets or ()]
        columns = jnp.concatenate([part.astype(jnp.float32) for part in parts], axis=-1)
        columns = jnp.pad(columns, ((0, 0), (0, 0), (0, self.grid.columns - columns.shape[-1])))
        # Padding leaves the state unchanged.
        is_kept = jnp.arange(self.grid.columns) >= 2 * self.grid.states
        return pad_length(columns, TILE * self.grid.block_tiles, is_kept.astype(jnp.float32))
