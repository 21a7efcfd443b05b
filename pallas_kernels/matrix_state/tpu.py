"""TPU kernels of recurrences with a matrix state per head.

Chunks, their inverse and the state stay on the chip. A grid step reads a block of tokens of one head, or of
two heads side by side, chunk after chunk, with the state in scratch memory. The blocks of a head come one
after another; heads that share keys take turns at each block. The forward pass reads q, k, v, the decays
and beta once, and writes o once. For the gradient, it also writes the state that enters each block. The
gradient runs a block again to compute the states that enter its chunks, which stay on the chip. Then it
goes through the chunks from the last to the first in reading order (`tpu_blocks`).

For heads that are read in reverse, blocks and chunks are visited from the end, and masks are transposed,
without copies.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from pallas_kernels.matrix_state.sequences import HeadSequences, ValueWeights
from pallas_kernels.matrix_state.tpu_blocks import BlockRefs, UnitWeights, backward_block, forward_block
from pallas_kernels.matrix_state.tpu_grid import HeadGrid, make_grid
from pallas_kernels.matrix_state.triangular import masked_inverse_flops


def forward(
    sequences: HeadSequences,
    values: ValueWeights | None,
    state: Float[Array, "batch heads d_k d_v"],
    *,
    direction: str,
    chunk: int,
    interpret: object = False,
) -> tuple[
    Float[Array, "batch length heads d_v"],
    Float[Array, "batch heads d_k d_v"],
    Float[Array, "batch units blocks d_k width"],
]:
    """Return the outputs, the float32 state after them, and the states of units that enter each block.

    The outputs and the states that enter blocks have the dtype of v.

    Args:
        sequences: the arguments; the length is a multiple of `chunk`, and g and beta are float32.
        values: the weights of the values, float32, or None.
        state: the state before the first token in reading order.
        direction: "forward", "reverse" or "both".
        chunk: the number of tokens of a chunk.
        interpret: whether to run in the TPU interpreter, on any platform; or its parameters.
    """
    grid = make_grid(sequences, direction, chunk)
    call = _Call(grid, sequences, values, backward=False)
    blocks = (len(state), grid.heads // grid.side * grid.units, grid.blocks, grid.d_k, grid.width)
    o, last, block_states = call.run(
        forward_block,
        [("first", state)],
        [
            ("value", call.values, sequences.v.dtype),
            ("last", state.shape, jnp.float32),
            ("boundary", blocks, sequences.v.dtype),
        ],
        [pltpu.VMEM((grid.steps * grid.units, grid.d_k, grid.width), jnp.float32)],
        interpret,
    )
    return o.reshape(sequences.v.shape), last, block_states


def backward(
    sequences: HeadSequences,
    values: ValueWeights | None,
    block_states: Float[Array, "batch units blocks d_k width"],
    cotangents: tuple[Float[Array, "batch length heads d_v"], Float[Array, "batch heads d_k d_v"]],
    *,
    direction: str,
    chunk: int,
    interpret: object = False,
) -> tuple[HeadSequences, ValueWeights | None, Float[Array, "batch heads d_k d_v"]]:
    """Return the cotangents of the sequences, the weights and the first state; None for the resets.

    Args:
        sequences: as for `forward`.
        values: as for `forward`.
        block_states: the states that enter each block, from `forward`.
        cotangents: the cotangents of the outputs and of the last state.
        direction: as for `forward`.
        chunk: as for `forward`.
        interpret: as for `forward`.
    """
    grid = make_grid(sequences, direction, chunk)
    call = _Call(grid, sequences, values, backward=True)
    do, dlast = cotangents
    v, k = sequences.v, sequences.k
    batch, length, heads = sequences.g.shape
    of_keys = ("key", (batch, length, heads // grid.shares * grid.d_k), k.dtype)
    if not grid.sets_have_keys:
        # With sets before tokens, their sum needs no copy in another layout.
        of_keys = ("set_key", (batch, grid.sets, length, grid.d_k), jnp.float32)
    of_weights = {name: call.operands[name] for name in UnitWeights._fields if name in call.operands}
    shapes = {name: array.shape for name, (_, array) in of_weights.items()}
    if "skip" in shapes:
        shapes["skip"] = (batch, shapes["skip"][0], grid.blocks, *shapes["skip"][1:])
    results = [
        *(of_keys, of_keys),
        ("value", call.values, v.dtype),
        *(("skips" if name == "skip" else "row", shape, jnp.float32) for name, shape in shapes.items()),
        ("last", dlast.shape, jnp.float32),
    ]
    scratch = [
        pltpu.VMEM((grid.steps * grid.units, grid.d_k, grid.width), jnp.float32),
        pltpu.VMEM((grid.chunks, grid.units, grid.d_k, grid.width), jnp.float32),
    ]
    if grid.shares > 1:
        scratch += [pltpu.VMEM((grid.chunk * grid.chunks, grid.d_k), jnp.float32)] * 2
    if sequences.beta is not None:
        scratch.append(pltpu.VMEM((grid.chunks, grid.units, grid.chunk, grid.chunk), jnp.float32))
    operands = [("boundary", block_states), ("value", do.reshape(call.values)), ("first", dlast)]
    dq, dk, dv, *rest, dstate = call.run(backward_block, operands, results, scratch, interpret)
    if not grid.sets_have_keys:
        of_shares = (batch, heads // grid.shares, -1, length, grid.d_k)
        dq, dk = (array.reshape(of_shares).sum(axis=2).swapaxes(1, 2) for array in (dq, dk))
    dq, dk = (array.reshape(k.shape) for array in (dq, dk))
    found = dict(zip(shapes, rest, strict=True))
    dskip = found.pop("skip").sum(axis=(0, 2)).reshape(heads, -1).sum(axis=1) if "skip" in found else None
    rows = {name: array.reshape(batch, heads, -1).swapaxes(1, 2) for name, array in found.items()}
    dvalues = None if values is None else ValueWeights(rows["scale"], dskip)
    dsequences = HeadSequences(dq, dk, dv.reshape(v.shape), rows["g"], rows.get("beta"), None)
    return dsequences, dvalues, dstate


class _Call:
    """The partition of a call's arrays into blocks, and the call."""

    def __init__(
        self, grid: HeadGrid, sequences: HeadSequences, values: ValueWeights | None, *, backward: bool
    ):
        self.grid, self.backward, self.has_beta = grid, backward, sequences.beta is not None
        self.operands = self._operands(sequences, values)
        self.values = (*sequences.v.shape[:2], grid.heads * grid.d_v)
        side, tokens = grid.side, grid.chunk * grid.chunks

        def block_of(h, t):
            from_the_end = jnp.logical_xor(grid.is_reverse(h), backward)
            return jnp.where(from_the_end, grid.blocks - 1 - t, t)

        def way_of(h):
            return jnp.where(grid.is_reverse(h), 1, 0) if grid.direction == "both" else 0

        def step_of(h, s):
            return h * grid.steps + s

        def only_at(block, h, t, s):
            # At other blocks the index stays that of the step before or after, so nothing is moved.
            return step_of(h, jnp.where(t == block, s, 0 if block else grid.steps - 1))

        def of_state(block):
            return pl.BlockSpec(
                (1, side, grid.d_k, grid.d_v), lambda b, h, t, s: (b, only_at(block, h, t, s), 0, 0)
            )

        self.kinds = {
            "key": pl.BlockSpec(
                (1, tokens, grid.key_heads * grid.d_k),
                lambda b, h, t, s: (
                    *(b, block_of(h, t)),
                    jax.lax.div(step_of(h, s) * side, grid.shares * grid.key_heads),
                ),
            ),
            "set_key": pl.BlockSpec((1, 1, tokens, grid.d_k), lambda b, h, t, s: (b, h, block_of(h, t), 0)),
            "value": pl.BlockSpec(
                (1, tokens, side * grid.d_v), lambda b, h, t, s: (b, block_of(h, t), step_of(h, s))
            ),
            "row": pl.BlockSpec(
                (1, side, 1, grid.chunks, grid.chunk),
                lambda b, h, t, s: (b, step_of(h, s), block_of(h, t), 0, 0),
            ),
            "reset": pl.BlockSpec(
                (1, 1, 1, grid.chunks, grid.chunk), lambda b, h, t, s: (b, way_of(h), block_of(h, t), 0, 0)
            ),
            "skip": pl.BlockSpec((1, 1, side * grid.d_v), lambda b, h, t, s: (step_of(h, s), 0, 0)),
            "skips": pl.BlockSpec(
                (1, 1, 1, 1, side * grid.d_v), lambda b, h, t, s: (b, step_of(h, s), block_of(h, t), 0, 0)
            ),
            "first": of_state(0),
            "last": of_state(grid.blocks - 1),
            "boundary": pl.BlockSpec(
                (1, grid.units, 1, grid.d_k, grid.width),
                lambda b, h, t, s: (b, step_of(h, s), block_of(h, t), 0, 0),
            ),
        }

    def rows(self, array: Array) -> Array:
        """Return [batch, length, heads] as [batch, heads, blocks, chunks, chunk]."""
        grid = self.grid
        batch, _, heads = array.shape
        return array.swapaxes(1, 2).reshape(batch, heads, grid.blocks, grid.chunks, grid.chunk)

    def _operands(
        self, sequences: HeadSequences, values: ValueWeights | None
    ) -> dict[str, tuple[str, Array]]:
        """Return the arrays that both passes read, by name, each with its kind."""
        q, k, v, g, beta, resets = sequences
        scale, skip = (None, None) if values is None else values
        flat = (*v.shape[:2], -1)
        found = {name: ("key", array.reshape(flat)) for name, array in (("q", q), ("k", k))}
        found["v"] = ("value", v.reshape(flat))
        for name, array in (("g", g), ("beta", beta), ("scale", scale)):
            if array is not None:
                found[name] = ("row", self.rows(array))
        if skip is not None:
            of_features = skip.repeat(self.grid.d_v)
            found["skip"] = ("skip", of_features.reshape(-1, 1, self.grid.side * self.grid.d_v))
        if resets is not None:
            found["reset"] = ("reset", self.rows(jnp.stack(resets, axis=2).astype(jnp.float32)))
        return found

    def run(self, kernel, others, results, scratch, interpret):
        """Run a kernel over all blocks of all heads; `others` are operands of this pass alone."""
        grid, names = self.grid, list(self.operands)
        operands = [*self.operands.values(), *others]
        batch = operands[0][1].shape[0]

        def body(*refs):
            run = functools.partial(kernel, grid, BlockRefs(names, refs))
            if grid.direction != "both":
                run(reverse=grid.direction == "reverse")
                return
            reverse = grid.is_reverse(pl.program_id(1))
            pl.when(reverse)(lambda: run(reverse=True))
            pl.when(jnp.logical_not(reverse))(lambda: run(reverse=False))

        return pl.pallas_call(
            body,
            out_shape=[jax.ShapeDtypeStruct(shape, dtype) for _, shape, dtype in results],
            grid=(batch, grid.sets, grid.blocks, grid.steps),
            in_specs=[self.kinds[kind] for kind, _ in operands],
            out_specs=[self.kinds[kind] for kind, *_ in results],
            scratch_shapes=scratch,
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "arbitrary", "arbitrary")
            ),
            cost_estimate=self.cost([array for _, array in operands], results),
            interpret=pltpu.InterpretParams() if interpret is True else interpret,
        )(*(array for _, array in operands))

    def cost(self, operands: list[Array], results: list[tuple[Any, ...]]) -> pl.CostEstimate:
        """Return the cost of a pass; a product counts once for each of its passes of the matrix unit."""
        grid, v = self.grid, operands[2]
        passes = 6 if v.dtype == jnp.float32 else 3
        per_token = token_flops(grid, has_beta=self.has_beta, backward=self.backward, passes=passes)
        tokens = math.prod(v.shape[:2]) * grid.heads
        moved = sum(array.nbytes for array in operands)
        moved += sum(math.prod(shape) * jnp.dtype(dtype).itemsize for _, shape, dtype in results)
        return pl.CostEstimate(
            flops=per_token * tokens, bytes_accessed=moved, transcendentals=(grid.chunk + 2) * tokens
        )


def token_flops(grid: HeadGrid, *, has_beta: bool, backward: bool, passes: int) -> int:
    """Return the FLOPs of the matrix products of a pass, for each token of a head.

    Args:
        grid: the sizes of a chunk. The heads of a unit share their products of keys.
        has_beta: whether the pass solves a triangular system.
        backward: whether to count the gradient, which recomputes the states.
        passes: the number of passes of the matrix unit for a product of the inverse.
    """
    if backward:
        states, keys, values = (10, 7, 6) if has_beta else (6, 3, 2)
    else:
        states, keys, values = (3, 2, 2) if has_beta else (2, 1, 1)
    of_keys = keys * grid.d_k * grid.units // grid.side
    products = 2 * (states * grid.d_k * grid.d_v + grid.chunk * (of_keys + values * grid.d_v))
    return products + (masked_inverse_flops(grid.chunk, passes) // grid.chunk if has_beta else 0)
