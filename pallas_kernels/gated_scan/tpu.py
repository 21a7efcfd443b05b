"""gated_scan for TPUs, in Mosaic: one kernel for the gates, the recurrence and the output gate of a block.

The blocks, the time chunks on the sublanes and the passes over them are the same as in `linear_scan.tpu`.
The kernel computes a and x from the projections in scratch memory, so a, x and h never leave the chip. It
writes only the states that enter the chunks, one row in 32.

The gradient reads the projections and those rows, and recomputes the states of a block (Chen et al. 2016;
for scans Gu and Dao 2023, appendix D). Then it runs the recurrence of the cotangents and computes the
cotangents of the projections, with the vector-Jacobian products of the cell's functions on a tile. Their
residuals stay in scratch memory while the recurrences run, because arithmetic is scarcer than memory.

With n projections, including the output gate: n + 1 memory accesses per element forward, 2 n + 1
backward.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.gated_scan.cell import Cell, GatedScanInputs
from pallas_kernels.linear_scan.padding import crop_channels, pad_channels, pad_length
from pallas_kernels.linear_scan.tpu import suits
from pallas_kernels.linear_scan.tpu_call import (
    LENGTH_UNIT,
    MAX_BLOCK_ROWS,
    Interpret,
    TpuGrid,
    call_kernel,
    make_grid,
    pack_resets,
)
from pallas_kernels.linear_scan.tpu_chunks import (
    LANES,
    TILE,
    at_step,
    channel_groups,
    for_each_tile,
    gradient_rows,
    not_reset_mask,
    rows_of,
    scan_rows,
    scan_rows_from,
    zero_at_resets,
)

__all__ = ["backward", "forward", "suits"]

# The bytes of all blocks of a grid step. Double buffering takes twice this and leaves room for the scratch
# memory.
BLOCKS_BYTES = 9 << 18
# Half the limit of linear_scan: the gradient keeps more of a block in scratch memory.
MAX_ROWS = MAX_BLOCK_ROWS // 2


def forward(
    cell: Cell, inputs: GatedScanInputs, *, direction: str, interpret: Interpret = False
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (y, last state, state before each chunk).

    Args:
        cell: the functions between the projections.
        inputs: the arrays, in float32 or bfloat16. Unsuitable sizes are padded, which copies every operand.
        direction: "forward", "reverse" or "both".
        interpret: whether to run in the TPU interpreter, slowly, on any platform; or its parameters.

    Returns:
        y in the dtype of the gate; in float32, the state after the last step in reading order
        [batch, channels] and the states before each time chunk [batch, row blocks, 8, padded channels].
    """
    _, length, channels = inputs.operands[0].shape
    pad = _Padding(cell, direction)
    blocks = [*pad.operands(inputs.operands), *pad.gates(inputs.gate)]
    grid = grid_for(blocks, len(blocks) + 1, direction, interpret)
    y, chunk_h0, last = call_kernel(
        grid,
        _forward_kernel(cell, with_gate=inputs.gate is not None),
        pack_resets(grid, inputs.resets),
        [*(("block", array) for array in blocks), *pad.vectors(inputs.parameters), pad.row(inputs.h0)],
        (("block", blocks[-1].dtype), ("boundary", jnp.float32), ("row", jnp.float32)),
        scratch_arrays=2,
        reverse_time=False,
        transcendentals=cell.transcendentals,
    )
    return pad.crop(y[:, :length], channels), pad.crop(last, channels), chunk_h0


def backward(
    cell: Cell,
    inputs: GatedScanInputs,
    chunk_h0: jax.Array,
    dy: jax.Array,
    dlast: jax.Array,
    *,
    direction: str,
    interpret: Interpret = False,
) -> GatedScanInputs:
    """Return the cotangents of the inputs as `GatedScanInputs`; parameters and h0 in float32.

    Args:
        cell: as for `forward`.
        inputs: as for `forward`; h0 is ignored.
        chunk_h0: the state before each chunk, from `forward`.
        dy: the cotangent of y.
        dlast: the cotangent of the last state.
        direction: as for `forward`.
        interpret: as for `forward`.
    """
    _, length, channels = inputs.operands[0].shape
    pad = _Padding(cell, direction)
    blocks = [*pad.operands(inputs.operands), *pad.gates(inputs.gate, dy)]
    results = [("block", array.dtype) for array in blocks[:-1]]
    with_gate, with_resets = inputs.gate is not None, inputs.resets is not None
    kept = kept_arrays(cell, with_gate=with_gate, with_resets=with_resets)
    grid = grid_for(blocks, len(blocks) + len(results), direction, interpret)
    found = call_kernel(
        grid,
        _backward_kernel(cell, with_gate=with_gate),
        pack_resets(grid, inputs.resets),
        [
            *(("block", array) for array in blocks),
            *pad.vectors(inputs.parameters),
            ("boundary", chunk_h0),
            pad.row(dlast),
        ],
        [*results, *[("row", jnp.float32)] * (len(inputs.parameters) + 1)],
        scratch_arrays=3 + kept,
        reverse_time=True,
        transcendentals=3 * cell.transcendentals,
    )
    operands = [pad.crop(value[:, :length], channels) for value in found[: len(results)]]
    gate = None if inputs.gate is None else operands.pop()
    *parameters, h0 = (pad.crop(value, channels) for value in found[len(results) :])
    parameters = tuple(value.sum(axis=0) for value in parameters)
    return GatedScanInputs(tuple(operands), gate, parameters, h0, None)


def grid_for(arrays: list[jax.Array], blocks: int, direction: str, interpret: Interpret) -> TpuGrid:
    """Return the grid of a call with these arrays; each step reads and writes `blocks` blocks."""
    dtype, limit = jnp.result_type(*arrays), BLOCKS_BYTES // blocks
    return make_grid(arrays[0].shape, dtype, direction, interpret, block_bytes=limit, max_rows=MAX_ROWS)


class _Kept:
    """The residuals of a cell's vector-Jacobian products on a tile, and how to get each of them later.

    Attributes:
        inputs: a and x of the tile.
        factors: the factor of the state in y, one for each gate.
        values: the residuals.
        sources: for each residual, (kind, number) of the operand or parameter that it equals; None if it
            is stored.
        types: the dtype of each residual.
        structure: the tree structure of the vector-Jacobian products, with the residuals as leaves.
    """

    def __init__(self, cell, parameters, operands, gates, mask):
        """Compute a tile and keep the residuals of its derivative."""
        self.inputs, pull = jax.vjp(
            lambda parameters, operands: cell.recurrence_inputs(parameters, operands, mask),
            *(parameters, operands),
        )
        read_out = [jax.vjp(cell.readout, gate) for gate in gates]
        self.factors = [value for value, _ in read_out]
        self.values, self.structure = jax.tree.flatten((pull, [pull for _, pull in read_out]))
        known = [("operand", k, value) for k, value in enumerate(operands)]
        known += [("parameter", k, value) for k, value in enumerate(parameters)]
        self.sources = [
            next(((kind, k) for kind, k, value in known if value is kept), None) for kept in self.values
        ]
        self.types = [value.dtype for value in self.values]

    @property
    def stored(self):
        """The stored residuals, in float32."""
        pairs = zip(self.values, self.sources, strict=True)
        return [
            jnp.broadcast_to(value, (TILE, LANES)).astype(jnp.float32)
            for value, source in pairs
            if source is None
        ]

    def pulls(self, parameters, operands, stored):
        """Return the vector-Jacobian products of the recurrence's inputs and the gates."""
        stored, known = iter(stored), {"operand": operands, "parameter": parameters}
        values = [
            next(stored).astype(dtype) if source is None else known[source[0]][source[1]]
            for source, dtype in zip(self.sources, self.types, strict=True)
        ]
        return jax.tree.unflatten(self.structure, values)


def kept_arrays(cell: Cell, *, with_gate: bool, with_resets: bool) -> int:
    """Return the numbers per element that the derivative of a cell keeps in scratch memory."""
    tile = jax.ShapeDtypeStruct((TILE, LANES), jnp.float32)
    mask = jax.ShapeDtypeStruct((TILE, LANES), jnp.bool_) if with_resets else None

    def stored(parameters, operands, gates, mask):
        return _Kept(cell, parameters, operands, gates, mask).stored

    parameters, operands = (tile,) * len(cell.parameters), (tile,) * len(cell.operands)
    return len(jax.eval_shape(stored, parameters, operands, [tile] * with_gate, mask))


class _Padding:
    """Padding that leaves the state unchanged, so the kernel can read it before the sequence."""

    def __init__(self, cell, direction):
        self.cell, self.halves = cell, 2 if direction == "both" else 1

    def operands(self, arrays):
        pairs = zip(arrays, self.cell.identity_operands, strict=True)
        return [pad_length(self._channels(array), LENGTH_UNIT, fill) for array, fill in pairs]

    def gates(self, *arrays):
        given = (array for array in arrays if array is not None)
        return [pad_length(self._channels(array), LENGTH_UNIT, 0.0) for array in given]

    def vectors(self, arrays):
        return [("channel", self._channels(array.astype(jnp.float32))) for array in arrays]

    def row(self, array):
        return "row", self._channels(array.astype(jnp.float32))

    def crop(self, array, channels):
        return crop_channels(array, self.halves, channels)

    def _channels(self, array):
        return pad_channels(array, self.halves, LANES)


def _loaded(refs, tile, lane):
    return tuple(ref[0, rows_of(tile), lane].astype(jnp.float32) for ref in refs)


def _on_tile(parameter_refs, lane):
    """Return the parameters of a group of channels, broadcast to every row of a tile."""
    return tuple(jnp.broadcast_to(ref[0, :, lane], (TILE, LANES)) for ref in parameter_refs)


def _forward_kernel(cell, *, with_gate):
    count = len(cell.operands)

    def kernel(grid, bits_ref, inputs, outputs, scratch, *, reverse):
        operand_refs, gate_refs = inputs[:count], inputs[count : count + with_gate]
        *parameter_refs, h0_ref = inputs[count + with_gate :]
        y_ref, chunk_h0_ref, last_ref = outputs
        carry_ref, a_rows, x_rows = scratch

        def run_group(first, lanes):
            parameters = [_on_tile(parameter_refs, lane) for lane in lanes]

            def compute_inputs(tile, scratch_row, carried):
                rows, mask = pl.ds(scratch_row, TILE), not_reset_mask(bits_ref, tile)
                for k, lane in enumerate(lanes):
                    a, x = cell.recurrence_inputs(parameters[k], _loaded(operand_refs, tile, lane), mask)
                    a_rows[k, rows], x_rows[k, rows] = zero_at_resets(mask, a), x
                return carried

            for_each_tile(grid.rows, compute_inputs)
            entering = []
            for k, lane in enumerate(lanes):
                entering.append(jnp.where(pl.program_id(2) == 0, h0_ref[0, :, lane], carry_ref[first + k]))
            chunk_h0, leaving = scan_rows(grid, a_rows, x_rows, entering, reverse=reverse)
            for k, lane in enumerate(lanes):
                carry_ref[first + k] = leaving[k]
                chunk_h0_ref[0, 0, :, lane] = chunk_h0[k]
                last_ref[0, :, lane] = leaving[k][:1]

            def write_y(tile, scratch_row, carried):
                for k, lane in enumerate(lanes):
                    y = x_rows[k, pl.ds(scratch_row, TILE)]
                    for gate in _loaded(gate_refs, tile, lane):
                        y = cell.readout(gate) * y
                    y_ref[0, rows_of(tile), lane] = y.astype(y_ref.dtype)
                return carried

            for_each_tile(grid.rows, write_y)

        for first, lanes in channel_groups(grid):
            run_group(first, lanes)

    return kernel


def _backward_kernel(cell, *, with_gate):
    count = len(cell.operands)

    def kernel(grid, bits_ref, inputs, outputs, scratch, *, reverse):
        operand_refs, gate_refs = inputs[:count], inputs[count : count + with_gate]
        dy_ref, *parameter_refs, chunk_h0_ref, dlast_ref = inputs[count + with_gate :]
        *dparameter_refs, dh0_ref = outputs[count + with_gate :]
        carry_ref, a_rows, g_rows, h_rows, *kept_rows = scratch
        # Forward, step t of a chunk is in row t + 1, below its previous state. In reverse, it is in row t,
        # above its previous state.
        shift = 0 if reverse else 1
        is_first = pl.program_id(2) == 0

        def run_group(first, lanes):
            parameters = [_on_tile(parameter_refs, lane) for lane in lanes]
            # Every tile has the same residuals, so those of the last tile describe how to read them back.
            last_kept = []

            def compute_inputs(tile, scratch_row, carried):
                rows, mask = pl.ds(scratch_row, TILE), not_reset_mask(bits_ref, tile)
                for k, lane in enumerate(lanes):
                    cotangent, *gates = _loaded([dy_ref, *gate_refs], tile, lane)
                    operands = _loaded(operand_refs, tile, lane)
                    kept = _Kept(cell, parameters[k], operands, gates, mask)
                    a, x = kept.inputs
                    a_rows[k, rows] = zero_at_resets(mask, a)
                    h_rows[k, pl.ds(scratch_row + shift, TILE)] = x
                    for factor in kept.factors:
                        cotangent = factor * cotangent
                    g_rows[k, rows] = cotangent
                    for ref, value in zip(kept_rows, kept.stored, strict=True):
                        ref[k, rows] = value
                    last_kept[:] = [kept]
                return carried

            for_each_tile(grid.rows, compute_inputs)
            chunk_h0 = [chunk_h0_ref[0, 0, :, lane] for lane in lanes]
            scan_rows_from(grid, a_rows, h_rows, chunk_h0, reverse=reverse, offset=shift)
            cotangents = []
            for k, lane in enumerate(lanes):
                h_rows[k, at_step(grid.chunk if reverse else 0, grid.stride)] = chunk_h0[k]
                # The cotangent of the last state enters like the g of one more step.
                cotangents.append(jnp.where(is_first, dlast_ref[0, :, lane], carry_ref[first + k]))
            leaving = gradient_rows(grid, a_rows, g_rows, h_rows, cotangents, reverse=reverse, shift=shift)

            def write_gradients(tile, scratch_row, sums):
                rows, mask = pl.ds(scratch_row, TILE), not_reset_mask(bits_ref, tile)
                added = []
                for k, lane in enumerate(lanes):
                    operands = _loaded(operand_refs, tile, lane)
                    stored = [ref[k, rows] for ref in kept_rows]
                    pull, gate_pulls = last_kept[0].pulls(parameters[k], operands, stored)
                    dparameters, doperands = pull((zero_at_resets(mask, a_rows[k, rows]), g_rows[k, rows]))
                    for pull_gate in gate_pulls:
                        (dy,) = _loaded([dy_ref], tile, lane)
                        doperands += pull_gate(dy * h_rows[k, pl.ds(scratch_row + shift, TILE)])
                    for ref, value in zip(outputs, doperands, strict=False):
                        ref[0, rows_of(tile), lane] = value.astype(ref.dtype)
                    added.append([old + new for old, new in zip(sums[k], dparameters, strict=True)])
                return added

            zeros = [[jnp.zeros((TILE, LANES), jnp.float32)] * len(dparameter_refs) for _ in lanes]
            sums = for_each_tile(grid.rows, write_gradients, zeros)
            for k, lane in enumerate(lanes):
                carry_ref[first + k] = leaving[k]
                dh0_ref[0, :, lane] = leaving[k][:1]
                for ref, value in zip(dparameter_refs, sums[k], strict=True):
                    previous = jnp.where(is_first, 0.0, ref[0, :, lane])
                    ref[0, :, lane] = previous + value.sum(axis=0, keepdims=True)

        for first, lanes in channel_groups(grid):
            run_group(first, lanes)

    return kernel
