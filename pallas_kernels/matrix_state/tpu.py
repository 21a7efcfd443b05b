"""Recurrences of a matrix a head as TPU kernels: chunks, their inverse and the state stay on the chip.

A grid step takes a block of one head's tokens, chunk after chunk, with the state in scratch memory; the
blocks of a head come one after the other. A forward pass reads q, k, v, the decays and beta once, and
writes o once; for the gradient it also writes the state that enters each block. The gradient runs a
block again to have the state that enters each of its chunks, which stay on the chip, and takes the
chunks from the last one read to the first: each is the derivative of `chunks.read_with`, traced into
the kernel.

Where heads are read in reverse, blocks and chunks are visited from the end, and masks are turned over:
nothing is copied.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from pallas_kernels.matrix_state.chunks import read_with
from pallas_kernels.matrix_state.decays import head_decays
from pallas_kernels.matrix_state.sequences import HeadSequences

# What a grid step of the gradient holds of its chunks: their states, and their blocks twice, for those
# under way. A v4 has 16 MiB.
MAX_BYTES = 12 << 20
MAX_CHUNKS = 16


class HeadGrid(NamedTuple):
    """How a call is cut into grid steps.

    Attributes:
        chunk: the tokens of a chunk.
        chunks: the chunks of a block.
        blocks: the blocks of a sequence.
        heads: the heads of the values.
        shares: the heads that share a head of keys.
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


def masked_inverse(A: Float[Array, "rows rows"], *, exact: bool = True) -> Float[Array, "rows rows"]:
    """Return (I + A)^-1 of a strictly triangular A, lower or upper, by products of whole matrices.

    The same merging of blocks as `triangular.unit_lower_inverse`, whose small blocks have no place in a
    kernel: with X the inverses of the diagonal blocks of one side, and A' what of A joins two of them, the
    next X is X - X A' X.

    Args:
        A: the matrix, whose side is a power of two.
        exact: whether its products have float32's precision, which takes six passes of bfloat16; otherwise
            three, which leaves an error of some 1e-5.
    """
    side = A.shape[0]
    row, column = (jax.lax.broadcasted_iota(jnp.int32, A.shape, axis) for axis in (0, 1))
    X = jnp.where(row == column, 1.0, 0.0)
    multiply = _multiply_exactly if exact else _multiply_in_three
    for level in range(side.bit_length() - 1):
        pair = jax.lax.shift_right_logical(row, level + 1) == jax.lax.shift_right_logical(column, level + 1)
        apart = jax.lax.shift_right_logical(row, level) != jax.lax.shift_right_logical(column, level)
        joining = jnp.where(pair & apart, A, 0.0)
        X -= joining if level == 0 else multiply(multiply(X, joining), X)
    return X


_multiply_exactly = functools.partial(
    jax.lax.dot, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
)


def _multiply_in_three(left: Array, right: Array) -> Array:
    """Return a product of float32 matrices by three of their leading and trailing halves in bfloat16."""
    multiply = functools.partial(jax.lax.dot, preferred_element_type=jnp.float32)
    (left_high, left_low), (right_high, right_low) = map(_halves, (left, right))
    return multiply(left_high, right_high) + (
        multiply(left_high, right_low) + multiply(left_low, right_high)
    )


def _halves(array: Array) -> tuple[Array, Array]:
    high = array.astype(jnp.bfloat16)
    return high, (array - high.astype(jnp.float32)).astype(jnp.bfloat16)


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
    """Return what the tokens read, the last state, and the state that enters each block, float32.

    Args:
        sequences: the arguments with heads before tokens; the length is a multiple of `chunk`.
        state: the state before the first token read.
        direction: "forward", "reverse" or "both".
        chunk: the tokens of a chunk.
        interpret: whether to run in the interpreter, or with which parameters.
    """
    grid = make_grid(sequences, direction, chunk)
    call = _Call(grid, sequences, backward=False)
    v = sequences.v
    blocks = (*state.shape[:2], grid.blocks, *state.shape[2:])
    results = [("value", v.shape, v.dtype), ("state", state.shape, jnp.float32)]
    o, last, block_states = call.run(
        _forward_block,
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
        block_states: the state that enters each block, of `forward`.
        cotangents: those of what the tokens read, and of the last state.
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
    # Those of the heads that share a head of keys are summed in float32.
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
    dq, dk, dv, dg, *rest = call.run(_backward_block, operands, results, scratch, interpret)
    dbeta = None if sequences.beta is None else rest[0].reshape(v.shape[:3])
    dq, dk = (array.reshape(*k.shape[:2], grid.shares, *k.shape[2:]).sum(axis=2) for array in (dq, dk))
    return HeadSequences(dq, dk, dv, dg.reshape(v.shape[:3]), dbeta, None), rest[-1]


class _Call:
    """The blocks of a call, and what its arrays are cut into."""

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
        """Return [batch, heads, length] as [batch, heads, blocks, chunks, chunk]."""
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
            run = functools.partial(kernel, grid, _Refs(refs, self.has_beta, self.has_resets))
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
        """Return what a pass costs; a product in several passes of the unit counts as often."""
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
        chunk: the tokens of a chunk.
        d_k: the features of a key.
        d_v: the features of a value.
        has_beta: whether a triangular matrix is solved.
        backward: whether it is the gradient, which makes the states again.
        passes: the passes of the matrix unit for a product of the inverse.
    """
    of_states, of_keys, of_values = 2 * d_k * d_v, 2 * chunk * d_k, 2 * chunk * d_v
    if backward:
        states, keys, values = (9, 8, 7) if has_beta else (6, 5, 3)
    else:
        states, keys, values = (3, 2, 2) if has_beta else (2, 1, 1)
    inverse = passes * 2 * (chunk.bit_length() - 2) * 2 * chunk**2 if has_beta else 0
    return states * of_states + keys * of_keys + values * of_values + inverse


class _Refs:
    """The references of a kernel: what both passes read, and the others in their order."""

    def __init__(self, refs: tuple[Any, ...], has_beta: bool, has_resets: bool):
        named = ["q", "k", "v", "g", *(["beta"] if has_beta else []), *(["reset"] if has_resets else [])]
        self.named = dict(zip(named, refs, strict=False))
        self.others = refs[len(named) :]

    def tokens(self, chunk: int, number: Any) -> tuple[Array, Array, Array]:
        """Return q, k and v of a chunk."""
        where = pl.ds(pl.multiple_of(number * chunk, chunk), chunk)
        q, k, v = (self.named[name][0, 0, where, :] for name in ("q", "k", "v"))
        return q, k, v

    def rows(self, number: Any) -> tuple[Array, Array | None, Array | None]:
        """Return g, beta and the resets of a chunk, [1, tokens]; None where the call has none."""

        def row(name: str) -> Array:
            return self.named[name][0, 0, 0, pl.ds(number, 1), :]

        beta, reset = (row(name) if name in self.named else None for name in ("beta", "reset"))
        return row("g"), beta, reset


def _read(state, tokens, rows, inverse, *, reverse):
    """Return the state after a chunk, and what its tokens read, by the rows of g, beta and resets."""
    g, beta, reset = rows
    decays = head_decays(g, None if reset is None else reset > 0.5, reverse=reverse)
    column = None
    if beta is not None:
        length = beta.shape[1]
        row, lane = (jax.lax.broadcasted_iota(jnp.int32, (length, length), axis) for axis in (0, 1))
        column = jnp.sum(jnp.where(row == lane, beta, 0.0), axis=1, keepdims=True)
    return read_with(decays, state, tokens, column, inverse)


def _forward_block(grid, refs, *, reverse):
    state, o, last, boundary, carried = refs.others
    inverse = functools.partial(masked_inverse, exact=o.dtype == jnp.float32)

    @pl.when(pl.program_id(2) == 0)
    def _():
        carried[...] = state[0, 0]

    boundary[0, 0, 0] = carried[...]

    def step(count, _):
        number = grid.chunks - 1 - count if reverse else count
        rows = refs.rows(number)
        left, read = _read(carried[...], refs.tokens(grid.chunk, number), rows, inverse, reverse=reverse)
        carried[...] = left
        o[0, 0, pl.ds(pl.multiple_of(number * grid.chunk, grid.chunk), grid.chunk), :] = read
        return 0

    jax.lax.fori_loop(0, grid.chunks, step, 0)
    last[0, 0] = carried[...]


def _backward_block(grid, refs, *, reverse):
    boundary, do, dlast, dq, dk, dv, dg, *rest = refs.others
    dbeta = rest.pop(0) if "beta" in refs.named else None
    dstate, carried, entering, *inverses = rest
    exact = do.dtype == jnp.float32

    @pl.when(pl.program_id(2) == 0)
    def _():
        carried[...] = dlast[0, 0]

    def number_of(count):
        return grid.chunks - 1 - count if reverse else count

    def keep_entering(count, state):
        number = number_of(count)
        entering[count] = state
        rows = refs.rows(number)

        def keep(A):
            inverses[0][count] = masked_inverse(A, exact=exact)
            return inverses[0][count]

        return _read(state, refs.tokens(grid.chunk, number), rows, keep, reverse=reverse)[0]

    jax.lax.fori_loop(0, grid.chunks, keep_entering, boundary[0, 0, 0])

    def pull(step, _):
        count = grid.chunks - 1 - step
        number = number_of(count)
        where = pl.ds(pl.multiple_of(number * grid.chunk, grid.chunk), grid.chunk)
        g, beta, reset = refs.rows(number)

        def kept(_):
            return inverses[0][count]

        def read(state, tokens, g, beta):
            return _read(state, tokens, (g, beta, reset), kept, reverse=reverse)

        tokens = refs.tokens(grid.chunk, number)
        _, pull_back = jax.vjp(read, entering[count], tokens, g, beta)
        found = pull_back((carried[...], do[0, 0, where, :]))
        carried[...] = found[0]
        for ref, array in zip((dq, dk, dv), found[1], strict=True):
            ref[0, 0, where, :] = array.astype(ref.dtype)
        dg[0, 0, 0, pl.ds(number, 1), :] = found[2]
        if dbeta is not None:
            dbeta[0, 0, 0, pl.ds(number, 1), :] = found[3]
        return 0

    jax.lax.fori_loop(0, grid.chunks, pull, 0)
    dstate[0, 0] = carried[...]
