"""TPU kernels of recurrences with a matrix state per head.

Chunks, their inverse and the state stay on the chip. A grid step reads a block of one head's tokens, chunk
after chunk, with the state in scratch memory. The blocks of a head come one after another. The forward pass
reads q, k, v, the decays and beta once, and writes o once. For the gradient, it also writes the state that
enters each block. The gradient runs a block again to compute the states that enter its chunks, which stay
on the chip. Then it goes through the chunks from the last to the first in reading order (`tpu_blocks`).

For heads that are read in reverse, blocks and chunks are visited from the end, and masks are transposed,
without copies.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from pallas_kernels.matrix_state.sequences import HeadSequences
from pallas_kernels.matrix_state.tpu_blocks import BlockRefs, backward_block, forward_block
from pallas_kernels.matrix_state.triangular import masked_inverse_flops

# The limit for a grid step of the gradient: the states of its chunks, and double-buffered blocks. A TPU v4
# has 16 MiB.
MAX_BYTES = 12 << 20
MAX_CHUNKS = 16
# The tokens of a chunk, as many as a matrix unit has rows: with fewer, products of keys and values, summed
# over the tokens, leave a part of the unit idle.
CHUNK = 128
# For narrower heads, most of a kernel's tiles would be padding.
LEAST_FEATURES = 64
LANES = 128


class HeadGrid(NamedTuple):
    """The partition of a call into grid steps.

    Attributes:
        chunk: the number of tokens of a chunk.
        chunks: the number of chunks of a block.
        blocks: the number of blocks of a sequence.
        heads: the number of heads of the values.
        shares: the number of heads that share a head of keys.
        side: the number of heads of a grid step, with their features side by side on the lanes.
        d_k: the number of features of a key.
        d_v: the number of features of a value.
        direction: "forward", "reverse" or "both".
    """

    chunk: int
    chunks: int
    blocks: int
    heads: int
    shares: int
    side: int
    d_k: int
    d_v: int
    direction: str

    def is_reverse(self, step: Any) -> Any:
        """Return whether the heads of a grid step are read in reverse."""
        if self.direction == "both":
            return step >= self.heads // self.side // 2
        return self.direction == "reverse"


def heads_side_by_side(sequences: HeadSequences, direction: str) -> int:
    """Return how many heads a grid step reads: two if one has too few features for the 128 lanes."""
    (groups, d_k), (heads, d_v) = sequences.k.shape[2:], sequences.v.shape[2:]
    shares, ways = heads // groups, 2 if direction == "both" else 1
    is_narrow = LANES in (2 * d_v, 2 * d_k if shares == 1 else 0)
    return 2 if is_narrow and heads % (2 * ways) == 0 and (shares == 1 or shares % 2 == 0) else 1


def fits_lanes(sequences: HeadSequences, direction: str) -> bool:
    """Return whether the features of a grid step fill whole lanes, or are all of an array's features."""
    (groups, d_k), (heads, d_v) = sequences.k.shape[2:], sequences.v.shape[2:]
    side = heads_side_by_side(sequences, direction)
    of_keys = side if groups == heads else 1
    return all(
        count == step or step * width % LANES == 0
        for count, step, width in ((groups, of_keys, d_k), (heads, side, d_v))
    )


def make_grid(sequences: HeadSequences, direction: str, chunk: int) -> HeadGrid:
    """Return the grid of sequences whose length is a multiple of `chunk`."""
    (length, heads, d_v), (groups, d_k) = sequences.v.shape[1:], sequences.k.shape[2:]
    side, total = heads_side_by_side(sequences, direction), length // chunk
    of_tokens = 2 * chunk * (4 * d_k + 3 * d_v) * sequences.v.dtype.itemsize
    most = min(MAX_CHUNKS, max(1, MAX_BYTES // (side * (4 * d_k * d_v + of_tokens))))
    chunks = max(n for n in range(1, most + 1) if total % n == 0)
    return HeadGrid(chunk, chunks, total // chunks, heads, heads // groups, side, d_k, d_v, direction)


def forward(
    sequences: HeadSequences,
    state: Float[Array, "batch heads d_k d_v"],
    *,
    direction: str,
    chunk: int,
    interpret: object = False,
) -> tuple[
    Float[Array, "batch length heads d_v"],
    Float[Array, "batch heads d_k d_v"],
    Float[Array, "batch heads blocks d_k d_v"],
]:
    """Return the outputs, the float32 state after them, and the state that enters each block.

    The outputs and the states that enter blocks have the dtype of v.

    Args:
        sequences: the arguments; the length is a multiple of `chunk`, and g and beta are float32.
        state: the state before the first token in reading order.
        direction: "forward", "reverse" or "both".
        chunk: the number of tokens of a chunk.
        interpret: whether to run in the TPU interpreter, on any platform; or its parameters.
    """
    grid = make_grid(sequences, direction, chunk)
    call = _Call(grid, sequences, backward=False)
    blocks = (*state.shape[:2], grid.blocks, *state.shape[2:])
    o, last, block_states = call.run(
        forward_block,
        [*call.operands(sequences), ("state", state)],
        [
            ("value", call.values, sequences.v.dtype),
            ("state", state.shape, jnp.float32),
            ("boundary", blocks, sequences.v.dtype),
        ],
        [pltpu.VMEM((grid.side, *state.shape[2:]), jnp.float32)],
        interpret,
    )
    return o.reshape(sequences.v.shape), last, block_states


def backward(
    sequences: HeadSequences,
    block_states: Float[Array, "batch heads blocks d_k d_v"],
    cotangents: tuple[Float[Array, "batch length heads d_v"], Float[Array, "batch heads d_k d_v"]],
    *,
    direction: str,
    chunk: int,
    interpret: object = False,
) -> tuple[HeadSequences, Float[Array, "batch heads d_k d_v"]]:
    """Return the cotangents of the sequences and of the first state; None for the resets.

    Args:
        sequences: as for `forward`.
        block_states: the state that enters each block, from `forward`.
        cotangents: the cotangents of the outputs and of the last state.
        direction: as for `forward`.
        chunk: as for `forward`.
        interpret: as for `forward`.
    """
    grid = make_grid(sequences, direction, chunk)
    call = _Call(grid, sequences, backward=True)
    do, dlast = cotangents
    v, k = sequences.v, sequences.k
    # The cotangents of heads that share a head of keys are summed in float32. With heads before tokens, the
    # sum needs no copy in another layout.
    batch, length, heads = sequences.g.shape
    of_keys = ("key", (batch, length, heads * grid.d_k), k.dtype)
    if grid.shares > 1:
        of_keys = ("own_key", (batch, heads, length, grid.d_k), jnp.float32)
    of_rows = ("row", call.rows(sequences.g).shape, jnp.float32)
    results = [
        *(of_keys, of_keys),
        ("value", call.values, v.dtype),
        of_rows,
        *([of_rows] if sequences.beta is not None else []),
        ("state", dlast.shape, jnp.float32),
    ]
    states = grid.side, *dlast.shape[2:]
    scratch = [pltpu.VMEM(states, jnp.float32), pltpu.VMEM((grid.chunks, *states), jnp.float32)]
    if sequences.beta is not None:
        scratch.append(pltpu.VMEM((grid.chunks, grid.side, grid.chunk, grid.chunk), jnp.float32))
    operands = [*call.operands(sequences), ("boundary", block_states)]
    operands += [("value", do.reshape(call.values)), ("state", dlast)]
    dq, dk, dv, dg, *rest = call.run(backward_block, operands, results, scratch, interpret)
    if grid.shares > 1:
        of_shares = (batch, -1, grid.shares, length, grid.d_k)
        dq, dk = (array.reshape(of_shares).sum(axis=2).swapaxes(1, 2) for array in (dq, dk))
    dq, dk = (array.reshape(k.shape) for array in (dq, dk))
    dg, *dbeta = (array.reshape(v.shape[0], grid.heads, -1).swapaxes(1, 2) for array in (dg, *rest[:-1]))
    return HeadSequences(*(dq, dk, dv.reshape(v.shape), dg, dbeta[0] if dbeta else None, None)), rest[-1]


class _Call:
    """The partition of a call's arrays into blocks, and the call."""

    def __init__(self, grid: HeadGrid, sequences: HeadSequences, *, backward: bool):
        self.grid, self.backward = grid, backward
        self.has_beta, self.has_resets = sequences.beta is not None, sequences.resets is not None
        self.values = (*sequences.v.shape[:2], grid.heads * grid.d_v)
        side, tokens = grid.side, grid.chunk * grid.chunks
        # The heads of a step share a head of keys, or each has its own.
        of_step = side if grid.shares == 1 else 1

        def block_of(h, t):
            from_the_end = jnp.logical_xor(grid.is_reverse(h), backward)
            return jnp.where(from_the_end, grid.blocks - 1 - t, t)

        def way_of(h):
            return jnp.where(grid.is_reverse(h), 1, 0) if grid.direction == "both" else 0

        def of_features(width):
            return pl.BlockSpec((1, tokens, width), lambda b, h, t: (b, block_of(h, t), h))

        self.kinds = {
            "key": pl.BlockSpec(
                (1, tokens, of_step * grid.d_k),
                lambda b, h, t: (b, block_of(h, t), jax.lax.div(h * side, grid.shares * of_step)),
            ),
            "own_key": pl.BlockSpec((1, side, tokens, grid.d_k), lambda b, h, t: (b, h, block_of(h, t), 0)),
            "value": of_features(side * grid.d_v),
            "row": pl.BlockSpec(
                (1, side, 1, grid.chunks, grid.chunk), lambda b, h, t: (b, h, block_of(h, t), 0, 0)
            ),
            "reset": pl.BlockSpec(
                (1, 1, 1, grid.chunks, grid.chunk), lambda b, h, t: (b, way_of(h), block_of(h, t), 0, 0)
            ),
            "state": pl.BlockSpec((1, side, grid.d_k, grid.d_v), lambda b, h, t: (b, h, 0, 0)),
            "boundary": pl.BlockSpec(
                (1, side, 1, grid.d_k, grid.d_v), lambda b, h, t: (b, h, block_of(h, t), 0, 0)
            ),
        }

    def rows(self, array: Array) -> Array:
        """Return [batch, length, heads] as [batch, heads, blocks, chunks, chunk]."""
        grid = self.grid
        batch, _, heads = array.shape
        return array.swapaxes(1, 2).reshape(batch, heads, grid.blocks, grid.chunks, grid.chunk)

    def operands(self, sequences: HeadSequences) -> list[tuple[str, Array]]:
        """Return the arrays that both passes read, each with its kind."""
        q, k, v, g, beta, resets = sequences
        found = [
            (kind, array.reshape(*v.shape[:2], -1))
            for kind, array in zip(("key", "key", "value"), (q, k, v), strict=True)
        ]
        found.append(("row", self.rows(g)))
        if beta is not None:
            found.append(("row", self.rows(beta)))
        if resets is not None:
            found.append(("reset", self.rows(jnp.stack(resets, axis=2).astype(jnp.float32))))
        return found

    def run(self, kernel, operands, results, scratch, interpret):
        """Run a kernel over all blocks of all heads."""
        grid = self.grid
        batch = operands[0][1].shape[0]

        def body(*refs):
            run = functools.partial(kernel, grid, BlockRefs(refs, self.has_beta, self.has_resets))
            if grid.direction != "both":
                run(reverse=grid.direction == "reverse")
                return
            reverse = grid.is_reverse(pl.program_id(1))
            pl.when(reverse)(lambda: run(reverse=True))
            pl.when(jnp.logical_not(reverse))(lambda: run(reverse=False))

        return pl.pallas_call(
            body,
            out_shape=[jax.ShapeDtypeStruct(shape, dtype) for _, shape, dtype in results],
            grid=(batch, grid.heads // grid.side, grid.blocks),
            in_specs=[self.kinds[kind] for kind, _ in operands],
            out_specs=[self.kinds[kind] for kind, *_ in results],
            scratch_shapes=scratch,
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
            cost_estimate=self.cost([array for _, array in operands], results),
            interpret=pltpu.InterpretParams() if interpret is True else interpret,
        )(*(array for _, array in operands))

    def cost(self, operands: list[Array], results: list[tuple[Any, ...]]) -> pl.CostEstimate:
        """Return the cost of a pass; a product counts once for each of its passes of the matrix unit."""
        grid, v = self.grid, operands[2]
        passes = 6 if v.dtype == jnp.float32 else 3
        per_token = token_flops(
            *(grid.chunk, grid.d_k, grid.d_v, self.has_beta, self.backward), passes=passes
        )
        tokens = math.prod(v.shape[:2]) * grid.heads
        moved = sum(array.nbytes for array in operands)
        moved += sum(math.prod(shape) * jnp.dtype(dtype).itemsize for _, shape, dtype in results)
        return pl.CostEstimate(
            flops=per_token * tokens, bytes_accessed=moved, transcendentals=(grid.chunk + 2) * tokens
        )


def token_flops(chunk: int, d_k: int, d_v: int, has_beta: bool, backward: bool, *, passes: int) -> int:
    """Return the FLOPs of the matrix products of a pass, for each token of a head.

    Args:
        chunk: the number of tokens of a chunk.
        d_k: the number of features of a key.
        d_v: the number of features of a value.
        has_beta: whether the pass solves a triangular system.
        backward: whether to count the gradient, which recomputes the states.
        passes: the number of passes of the matrix unit for a product of the inverse.
    """
    of_states, of_keys, of_values = 2 * d_k * d_v, 2 * chunk * d_k, 2 * chunk * d_v
    if backward:
        states, keys, values = (9, 8, 7) if has_beta else (6, 5, 3)
    else:
        states, keys, values = (3, 2, 2) if has_beta else (2, 1, 1)
    inverse = masked_inverse_flops(chunk, passes) // chunk if has_beta else 0
    return states * of_states + keys * of_keys + values * of_values + inverse
