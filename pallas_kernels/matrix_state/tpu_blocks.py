"""The body of the kernels in `tpu`: one block of one head's tokens."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from pallas_kernels.matrix_state.chunks import read_with
from pallas_kernels.matrix_state.decays import HeadsDecays, head_decays
from pallas_kernels.matrix_state.tpu_grid import HeadGrid
from pallas_kernels.matrix_state.triangular import masked_inverse


class BlockRefs:
    """The references of a kernel: by name if both passes read them, the others in order."""

    def __init__(self, refs: tuple[Any, ...], has_beta: bool, has_resets: bool):
        named = ["q", "k", "v", "g", *(["beta"] if has_beta else []), *(["reset"] if has_resets else [])]
        self.named = dict(zip(named, refs, strict=False))
        self.others = refs[len(named) :]

    def tokens(self, grid: HeadGrid, number: Any, unit: int) -> tuple[Array, Array, Array]:
        """Return q, k and v of a chunk of one of the step's units."""
        where = chunk_tokens(grid, number)
        of_keys = lanes(grid.d_k, unit if grid.shares == 1 else 0)
        q, k = (self.named[name][0, where, of_keys] for name in ("q", "k"))
        return q, k, self.named["v"][0, where, lanes(grid.width, unit)]

    def rows(
        self, grid: HeadGrid, number: Any, unit: int
    ) -> tuple[tuple[Array, ...], Array | None, Array | None]:
        """Return g of a chunk of each head of a unit, beta, and the resets, each [1, tokens], or None."""

        def row(name: str, head: int) -> Array:
            return self.named[name][0, head, 0, pl.ds(number, 1), :]

        beta = row("beta", unit) if "beta" in self.named else None
        reset = row("reset", 0) if "reset" in self.named else None
        return tuple(row("g", head) for head in heads_of(grid, unit)), beta, reset


def own_states(grid: HeadGrid) -> Any:
    """Return the places of the states of this grid step among those of its set."""
    return pl.ds(pl.program_id(3) * grid.units, grid.units)


def _places(grid: HeadGrid) -> Iterator[tuple[int, Any, slice]]:
    """Yield each head of this grid step, the place of its unit's state, and its lanes there."""
    for unit in range(grid.units):
        for place, head in enumerate(heads_of(grid, unit)):
            yield head, own_states(grid).start + unit, lanes(grid.d_v, place)


def take_states(grid: HeadGrid, carried: Any, first: Any) -> Any:
    """Set the states of this grid step at the first block; return their places."""

    @pl.when(pl.program_id(2) == 0)
    def _():
        for head, unit, of_head in _places(grid):
            carried[unit, :, of_head] = first[0, head]

    return own_states(grid)


def give_states(grid: HeadGrid, carried: Any, last: Any) -> None:
    """Write the states of this grid step by head."""
    for head, unit, of_head in _places(grid):
        last[0, head] = carried[unit, :, of_head]


def chunk_tokens(grid: HeadGrid, number: Any) -> Any:
    """Return the tokens of a chunk within its block."""
    return pl.ds(pl.multiple_of(number * grid.chunk, grid.chunk), grid.chunk)


def heads_of(grid: HeadGrid, unit: int) -> range:
    """Return the heads of one of the step's units."""
    count = grid.side // grid.units
    return range(unit * count, (unit + 1) * count)


def lanes(width: int, unit: int) -> slice:
    """Return the lanes of one of the step's units."""
    return slice(unit * width, (unit + 1) * width)


def read_unit(state, tokens, rows, inverse, *, reverse):
    """Return the state after a chunk and the output of its tokens; `rows` are those of `BlockRefs`."""
    of_heads, beta, reset = rows
    reset = None if reset is None else reset > 0.5
    each = [head_decays(g, reset, reverse=reverse) for g in of_heads]
    decays = each[0] if len(each) == 1 else HeadsDecays(tuple(each))
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

    own = take_states(grid, carried, state)
    boundary[0, :, 0] = carried[own].astype(boundary.dtype)

    def step(count, _):
        number = grid.chunks - 1 - count if reverse else count
        for unit in range(grid.units):
            tokens, rows = refs.tokens(grid, number, unit), refs.rows(grid, number, unit)
            at = own.start + unit
            carried[at], read = read_unit(carried[at], tokens, rows, inverse, reverse=reverse)
            o[0, chunk_tokens(grid, number), lanes(grid.width, unit)] = read
        return 0

    jax.lax.fori_loop(0, grid.chunks, step, 0)
    give_states(grid, carried, last)


def backward_block(grid, refs, *, reverse):
    """Compute the gradient of a block, with a traced derivative of `chunks.read_with` for each chunk."""
    boundary, do, dlast, dq, dk, dv, dg, *rest = refs.others
    dbeta = rest.pop(0) if "beta" in refs.named else None
    dstate, carried, entering, *inverses = rest
    exact = do.dtype == jnp.float32

    own = take_states(grid, carried, dlast)

    def number_of(count):
        return grid.chunks - 1 - count if reverse else count

    def keep_entering(unit, count, state):
        number = number_of(count)
        entering[count, unit] = state

        def keep(A):
            inverses[0][count, unit] = masked_inverse(A, upper=reverse, exact=exact)
            return inverses[0][count, unit]

        tokens, rows = refs.tokens(grid, number, unit), refs.rows(grid, number, unit)
        return read_unit(state, tokens, rows, keep, reverse=reverse)[0]

    def pull(unit, step, _):
        count = grid.chunks - 1 - step
        number = number_of(count)
        where = chunk_tokens(grid, number)
        of_heads, beta, reset = refs.rows(grid, number, unit)

        def kept(_):
            return inverses[0][count, unit]

        def read(state, tokens, of_heads, beta):
            return read_unit(state, tokens, (of_heads, beta, reset), kept, reverse=reverse)

        tokens = refs.tokens(grid, number, unit)
        _, pull_back = jax.vjp(read, entering[count, unit], tokens, of_heads, beta)
        at = own.start + unit
        found = pull_back((carried[at], do[0, where, lanes(grid.width, unit)]))
        carried[at] = found[0]
        for ref, array in zip((dq, dk), found[1][:2], strict=True):
            if grid.shares == 1:
                ref[0, where, lanes(grid.d_k, unit)] = array.astype(ref.dtype)
            else:
                ref[0, 0, where] += array.astype(ref.dtype)
        dv[0, where, lanes(grid.width, unit)] = found[1][2].astype(dv.dtype)
        for head, of_head in zip(heads_of(grid, unit), found[2], strict=True):
            dg[0, head, 0, pl.ds(number, 1), :] = of_head
        if dbeta is not None:
            dbeta[0, unit, 0, pl.ds(number, 1), :] = found[3]
        return 0

    if grid.shares > 1:

        @pl.when(pl.program_id(3) == 0)
        def _():
            for ref in (dq, dk):
                ref[...] = jnp.zeros_like(ref)

    # One unit after the other: two at once need more registers than there are.
    for unit in range(grid.units):
        first = boundary[0, unit, 0].astype(jnp.float32)
        jax.lax.fori_loop(0, grid.chunks, functools.partial(keep_entering, unit), first)
        jax.lax.fori_loop(0, grid.chunks, functools.partial(pull, unit), 0)
    give_states(grid, carried, dstate)
