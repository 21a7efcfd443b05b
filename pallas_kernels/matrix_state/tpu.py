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

# The limit for a grid step of the gradient: the states of its chunks, and double-buffered blocks. A TPU v4
# has 16 MiB.
MAX_BYTES = 12 << 20
MAX_CHUNKS = 16
# For narrower heads, most of a kernel's tiles would be padding.
LEAST_FEATURES = 64


class HeadGrid(NamedTuple):
    """The partition of a call into grid steps.

    Attributes:
        chunk: the number of tokens of a chunk.
        chunks: the number of chunks of a block.
        blocks: the number of blocks of a sequence.
        heads: the number of heads of the values.
        shares: the number of heads that share a head of keys.
        direction: "forward", "reverse" or "both".
    """

    chunk: int
    chunks: int
    blocks: int
    heads: int
    shares: int
    direction: str

    def is_reverse(self, head: Any) -> Any:
        """Return whether a head is read in reverse."""
        if self.direction == "both":
            return head >= self.heads // 2
        return self.direction == "reverse"


def make_grid(sequences: HeadSequences, direction: str, chunk: int) -> HeadGrid:
    """Return the grid of padded sequences [batch, heads, length, features]."""
    heads, length, d_v = sequences.v.shape[1:]
    d_k = sequences.k.shape[-1]
    total = length // chunk
    of_chunk = 4 * d_k * d_v + 2 * chunk * (4 * d_k + 3 * d_v) * sequences.v.dtype.itemsize
    most = min(MAX_CHUNKS, max(1, MAX_BYTES // of_chunk))
    chunks = max(n for n in range(1, most + 1) if total % n == 0)
    return HeadGrid(chunk, chunks, total // chunks, heads, heads // sequences.k.shape[1], direction)


def forward(
    sequences: HeadSequences,
    state: Float[Array, "batch heads d_k d_v"],
    *,
    direction: str,
    chunk: int,
    interpret: object = False,
) -> tuple[
    Float[Array, "batch heads length d_v"],
    Float[Array, "batch heads d_k d_v"],
    Float[Array, "batch heads blocks d_k d_v"],
]:
    """Return the outputs, and in float32 the last state and the state that enters each block.

    Args:
        sequences: the arguments with heads before tokens; the length is a multiple of `chunk`.
        state: the state before the first token in reading order.
        direction: "forward", "reverse" or "both".
        chunk: the number of tokens of a chunk.
        interpret: whether to run in the TPU interpreter, on any platform; or its parameters.
    """
    grid = make_grid(sequences, direction, chunk)
    call = _Call(grid, sequences, backward=False)
    v = sequences.v
    blocks = (*state.shape[:2], grid.blocks, *state.shape[2:])
    results = [("value", v.shape, v.dtype), ("state", state.shape, jnp.float32)]
    o, last, block_states = call.run(
        forward_block,
        [*call.operands(sequences), ("state", state)],
        [*results, ("boundary", blocks, jnp.float32)],
        [pltpu.VMEM(state.shape[2:], jnp.float32)],
        interpret,
    )
    return o, last, block_states


def backward(
    sequences: HeadSequences,
    block_states: Float[Array, "batch heads blocks d_k d_v"],
    cotangents: tuple[Float[Array, "batch heads length d_v"], Float[Array, "batch heads d_k d_v"]],
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
    keys = (*v.shape[:3], k.shape[-1])
    rows = call.rows(sequences.g).shape
    sides = dlast.shape[2:]
    # The cotangents of heads that share a head of keys are summed in float32.
    own = jnp.float32 if grid.shares > 1 else k.dtype
    results = [
        ("own_key", keys, own),
        ("own_key", keys, own),
        ("value", v.shape, v.dtype),
        ("row", rows, jnp.float32),
        *([("row", rows, jnp.float32)] if sequences.beta is not None else []),
        ("state", dlast.shape, jnp.float32),
    ]
    scratch = [pltpu.VMEM(sides, jnp.float32), pltpu.VMEM((grid.chunks, *sides), jnp.float32)]
    if sequences.beta is not None:
        scratch.append(pltpu.VMEM((grid.chunks, grid.chunk, grid.chunk), jnp.float32))
    operands = [*call.operands(sequences), ("boundary", block_states), ("value", do), ("state", dlast)]
    dq, dk, dv, dg, *rest = call.run(backward_block, operands, results, scratch, interpret)
    dbeta = None if sequences.beta is None else rest[0].reshape(v.shape[:3])
    dq, dk = (array.reshape(*k.shape[:2], grid.shares, *k.shape[2:]).sum(axis=2) for array in (dq, dk))
    return HeadSequences(dq, dk, dv, dg.reshape(v.shape[:3]), dbeta, None), rest[-1]


class _Call:
    """The partition of a call's arrays into blocks, and the call."""

    def __init__(self, grid: HeadGrid, sequences: HeadSequences, *, backward: bool):
        self.grid, self.backward = grid, backward
        self.has_beta, self.has_resets = sequences.beta is not None, sequences.resets is not None
        d_k, d_v = sequences.k.shape[-1], sequences.v.shape[-1]
        tokens = grid.chunk * grid.chunks

        def block_of(h, t):
            from_the_end = jnp.logical_xor(grid.is_reverse(h), backward)
            return jnp.where(from_the_end, grid.blocks - 1 - t, t)

        def way_of(h):
            return jnp.where(grid.is_reverse(h), 1, 0) if grid.direction == "both" else 0

        self.kinds = {
            "key": pl.BlockSpec(
                (1, 1, tokens, d_k), lambda b, h, t: (b, jax.lax.div(h, grid.shares), block_of(h, t), 0)
            ),
            "own_key": pl.BlockSpec((1, 1, tokens, d_k), lambda b, h, t: (b, h, block_of(h, t), 0)),
            "value": pl.BlockSpec((1, 1, tokens, d_v), lambda b, h, t: (b, h, block_of(h, t), 0)),
            "row": pl.BlockSpec(
                (1, 1, 1, grid.chunks, grid.chunk), lambda b, h, t: (b, h, block_of(h, t), 0, 0)
            ),
            "reset": pl.BlockSpec(
                (1, 1, 1, grid.chunks, grid.chunk), lambda b, h, t: (b, way_of(h), block_of(h, t), 0, 0)
            ),
            "state": pl.BlockSpec((1, 1, d_k, d_v), lambda b, h, t: (b, h, 0, 0)),
            "boundary": pl.BlockSpec((1, 1, 1, d_k, d_v), lambda b, h, t: (b, h, block_of(h, t), 0, 0)),
        }

    def rows(self, array: Array) -> Array:
        """Reshape [batch, heads, length] to [batch, heads, blocks, chunks, chunk]."""
        grid = self.grid
        return array.reshape(*array.shape[:2], grid.blocks, grid.chunks, grid.chunk)

    def operands(self, sequences: HeadSequences) -> list[tuple[str, Array]]:
        """Return the arrays that both passes read, each with its kind."""
        q, k, v, g, beta, resets = sequences
        found = [("key", q), ("key", k), ("value", v), ("row", self.rows(g))]
        if beta is not None:
            found.append(("row", self.rows(beta)))
        if resets is not None:
            found.append(("reset", self.rows(jnp.stack(resets, axis=1).astype(jnp.float32))))
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
            grid=(batch, grid.heads, grid.blocks),
            in_specs=[self.kinds[kind] for kind, _ in operands],
            out_specs=[self.kinds[kind] for kind, *_ in results],
            scratch_shapes=scratch,
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
            cost_estimate=self.cost([array for _, array in operands], results),
            interpret=pltpu.InterpretParams() if interpret is True else interpret,
        )(*(array for _, array in operands))

    def cost(self, operands: list[Array], results: list[tuple[Any, ...]]) -> pl.CostEstimate:
        """Return the cost of a pass; a product counts once for each of its passes of the matrix unit."""
        grid, (q, _, v) = self.grid, operands[:3]
        passes = 6 if v.dtype == jnp.float32 else 3
        per_token = token_flops(
            *(grid.chunk, q.shape[-1], v.shape[-1], self.has_beta, self.backward), passes=passes
        )
        tokens = math.prod(v.shape[:3])
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
    inverse = passes * 2 * (chunk.bit_length() - 2) * 2 * chunk**2 if has_beta else 0
    return states * of_states + keys * of_keys + values * of_values + inverse
