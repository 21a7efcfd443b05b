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

    def tokens(self, chunk: int, number: Any) -> tuple[Array, Array, Array]:
        """Return q, k and v of a chunk."""
        where = pl.ds(pl.multiple_of(number * chunk, chunk), chunk)
        q, k, v = (self.named[name][0, 0, where, :] for name in ("q", "k", "v"))
        return q, k, v

    def rows(self, number: Any) -> tuple[Array, Array | None, Array | None]:
        """Return g, beta and the resets of a chunk, each [1, tokens]; None if the call has none."""

        def row(name: str) -> Array:
            return self.named[name][0, 0, 0, pl.ds(number, 1), :]

        beta, reset = (row(name) if name in self.named else None for name in ("beta", "reset"))
        return row("g"), beta, reset


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
    """Read a block of a head's tokens, chunk after chunk."""
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


def backward_block(grid, refs, *, reverse):
    """Compute the gradient of a block, with a traced derivative of `chunks.read_with` for each chunk."""
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
