"""The body of the kernels in `tpu`: one block of one head's tokens."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from pallas_kernels.matrix_state.chunks import read_with
from pallas_kernels.matrix_state.decays import head_decays
from pallas_kernels.matrix_state.triangular import masked_inverse


class BlockRefs:
    """The references of a kernel: by name if both passes read them, the others in order."""

    def __init__(self, refs: tuple[Any, ...], has_beta: bool, has_resets: bool):
        named = ["q", "k", "v", "g", *(["beta"] if has_beta else []), *(["reset"] if has_resets else [])]
        self.named = dict(zip(named, refs, strict=False))
        self.others = refs[len(named) :]

    def tokens(self, grid: Any, number: Any, head: int) -> tuple[Array, Array, Array]:
        """Return q, k and v of a chunk of one of the step's heads."""
        where = chunk_tokens(grid, number)
        of_keys = lanes(grid.d_k, head if grid.shares == 1 else 0)
        q, k = (self.named[name][0, where, of_keys] for name in ("q", "k"))
        return q, k, self.named["v"][0, where, lanes(grid.d_v, head)]

    def rows(self, number: Any, head: int) -> tuple[Array, Array | None, Array | None]:
        """Return g, beta and the resets of a chunk of a head, each [1, tokens], or None."""

        def row(name: str) -> Array:
            return self.named[name][0, 0 if name == "reset" else head, 0, pl.ds(number, 1), :]

        beta, reset = (row(name) if name in self.named else None for name in ("beta", "reset"))
        return row("g"), beta, reset


def chunk_tokens(grid: Any, number: Any) -> Any:
    """Return the tokens of a chunk within its block."""
    return pl.ds(pl.multiple_of(number * grid.chunk, grid.chunk), grid.chunk)


def lanes(width: int, head: int) -> slice:
    """Return the lanes of one of the step's heads."""
    return slice(head * width, (head + 1) * width)


def _read(state, tokens, rows, inverse, *, reverse):
    """Return the state after a chunk and the output of its tokens; `rows` are g, beta and the resets."""
    g, beta, reset = rows
    decays = head_decays(g, None if reset is None else reset > 0.5, reverse=reverse)
    column = None
    if beta is not None:
        length = beta.shape[1]
        row, lane = (jax.lax.broadcasted_iota(jnp.int32, (length, length), axis) for axis in (0, 1))
        column = jnp.sum(jnp.where(row == lane, beta, 0.0), axis=1, keepdims=True)
    return read_with(decays, state, tokens, column, inverse)


def forward_block(grid, refs, *, reverse):
    """Read a block of tokens of a step's heads, chunk after chunk."""
    state, o, last, boundary, carried = refs.others
    inverse = functools.partial(masked_inverse, upper=reverse, exact=o.dtype == jnp.float32)

    @pl.when(pl.program_id(2) == 0)
    def _():
        carried[...] = state[0]

    boundary[0, :, 0] = carried[...].astype(boundary.dtype)

    def step(count, _):
        number = grid.chunks - 1 - count if reverse else count
        for head in range(grid.side):
            tokens, rows = refs.tokens(grid, number, head), refs.rows(number, head)
            carried[head], read = _read(carried[head], tokens, rows, inverse, reverse=reverse)
            o[0, chunk_tokens(grid, number), lanes(grid.d_v, head)] = read
        return 0

    jax.lax.fori_loop(0, grid.chunks, step, 0)
    last[0] = carried[...]


def backward_block(grid, refs, *, reverse):
    """Compute the gradient of a block, with a traced derivative of `chunks.read_with` for each chunk."""
    boundary, do, dlast, dq, dk, dv, dg, *rest = refs.others
    dbeta = rest.pop(0) if "beta" in refs.named else None
    dstate, carried, entering, *inverses = rest
    exact = do.dtype == jnp.float32

    @pl.when(pl.program_id(2) == 0)
    def _():
        carried[...] = dlast[0]

    def number_of(count):
        return grid.chunks - 1 - count if reverse else count

    def keep_entering(head, count, state):
        number = number_of(count)
        entering[count, head] = state

        def keep(A):
            inverses[0][count, head] = masked_inverse(A, upper=reverse, exact=exact)
            return inverses[0][count, head]

        tokens, rows = refs.tokens(grid, number, head), refs.rows(number, head)
        return _read(state, tokens, rows, keep, reverse=reverse)[0]

    def pull(head, step, _):
        count = grid.chunks - 1 - step
        number = number_of(count)
        where = chunk_tokens(grid, number)
        g, beta, reset = refs.rows(number, head)

        def kept(_):
            return inverses[0][count, head]

        def read(state, tokens, g, beta):
            return _read(state, tokens, (g, beta, reset), kept, reverse=reverse)

        tokens = refs.tokens(grid, number, head)
        _, pull_back = jax.vjp(read, entering[count, head], tokens, g, beta)
        found = pull_back((carried[head], do[0, where, lanes(grid.d_v, head)]))
        carried[head] = found[0]
        for ref, array in zip((dq, dk), found[1][:2], strict=True):
            at = (head, where) if grid.shares > 1 else (where, lanes(grid.d_k, head))
            ref[0, *at] = array.astype(ref.dtype)
        dv[0, where, lanes(grid.d_v, head)] = found[1][2].astype(dv.dtype)
        dg[0, head, 0, pl.ds(number, 1), :] = found[2]
        if dbeta is not None:
            dbeta[0, head, 0, pl.ds(number, 1), :] = found[3]
        return 0

    # One head after the other: two at once need more registers than there are.
    for head in range(grid.side):
        first = boundary[0, head, 0].astype(jnp.float32)
        jax.lax.fori_loop(0, grid.chunks, functools.partial(keep_entering, head), first)
        jax.lax.fori_loop(0, grid.chunks, functools.partial(pull, head), 0)
    dstate[0] = carried[...]
