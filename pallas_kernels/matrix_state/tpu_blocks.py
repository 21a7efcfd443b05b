"""The body of the kernels in `tpu`: one block of one head's tokens."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from pallas_kernels.matrix_state.chunks import read_with
from pallas_kernels.matrix_state.decays import HeadsDecays, column_of, head_decays, side_by_side
from pallas_kernels.matrix_state.tpu_grid import HeadGrid
from pallas_kernels.matrix_state.triangular import Inverse, masked_inverse


class UnitWeights(NamedTuple):
    """The numbers of a chunk of a unit that a pass reads beside its tokens, or their cotangents.

    Attributes:
        g: the logarithms of the decays of each head, [1, tokens].
        beta: the shares of the old values that new ones replace, [1, tokens], or None.
        scale: the factors of the values in the state of each head, [1, tokens], or None.
        skip: the factors of the values in their own outputs, [1, width], or None.
    """

    g: tuple[Array, ...]
    beta: Array | None = None
    scale: tuple[Array, ...] | None = None
    skip: Array | None = None


class BlockRefs:
    """The references of a kernel: by name if both passes read them, the others in order."""

    def __init__(self, names: Sequence[str], refs: tuple[Any, ...]):
        self.named = dict(zip(names, refs, strict=False))
        self.others = refs[len(names) :]

    def tokens(self, grid: HeadGrid, number: Any, unit: int) -> tuple[Array, Array, Array]:
        """Return q, k and v of a chunk of one of the step's units."""
        where = chunk_tokens(grid, number)
        of_keys = lanes(grid.d_k, unit if grid.shares == 1 else 0)
        q, k = (self.named[name][0, where, of_keys] for name in ("q", "k"))
        return q, k, self.named["v"][0, where, lanes(grid.width, unit)]

    def _rows(self, name: str, number: Any, heads: Iterable[int]) -> tuple[Array, ...] | None:
        if name not in self.named:
            return None
        return tuple(self.named[name][0, head, 0, pl.ds(number, 1), :] for head in heads)

    def weights(self, grid: HeadGrid, number: Any, unit: int) -> UnitWeights:
        """Return the numbers of a chunk of one of the step's units."""
        g, scale = (self._rows(name, number, heads_of(grid, unit)) for name in ("g", "scale"))
        beta, skip = self._rows("beta", number, [unit]), self.named.get("skip")
        skip = None if skip is None else skip[0, :, lanes(grid.width, unit)]
        return UnitWeights(g or (), beta[0] if beta else None, scale, skip)

    def reset(self, number: Any) -> Array | None:
        """Return the resets of a chunk, [1, tokens], or None."""
        found = self._rows("reset", number, [0])
        return found[0] > 0.5 if found else None


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


def read_unit(
    state: Array,
    tokens: tuple[Array, Array, Array],
    weights: UnitWeights,
    reset: Array | None,
    inverse: Inverse,
    *,
    reverse: bool,
) -> tuple[Array, Array]:
    """Return the state of a unit after a chunk, and the output of its tokens."""
    each = [head_decays(g, reset, reverse=reverse) for g in weights.g]
    decays = each[0] if len(each) == 1 else HeadsDecays(tuple(each))
    beta, scale = weights.beta, weights.scale
    if scale is not None:
        scale = side_by_side([column_of(row) for row in scale], state.shape[1])
    column = None if beta is None else column_of(beta)
    return read_with(decays, state, tokens, column, inverse, values=(scale, weights.skip))


def forward_block(grid, refs, *, reverse):
    """Read a block of tokens of a step's heads, chunk after chunk."""
    state, o, last, boundary, carried = refs.others
    inverse = functools.partial(masked_inverse, upper=reverse, exact=o.dtype == jnp.float32)

    own = take_states(grid, carried, state)
    boundary[0, :, 0] = carried[own].astype(boundary.dtype)

    def step(count, _):
        number = grid.chunks - 1 - count if reverse else count
        for unit in range(grid.units):
            tokens, weights = refs.tokens(grid, number, unit), refs.weights(grid, number, unit)
            at = own.start + unit
            carried[at], read = read_unit(
                carried[at], tokens, weights, refs.reset(number), inverse, reverse=reverse
            )
            o[0, chunk_tokens(grid, number), lanes(grid.width, unit)] = read
        return 0

    jax.lax.fori_loop(0, grid.chunks, step, 0)
    give_states(grid, carried, last)


def backward_block(grid, refs, *, reverse):
    """Compute the gradient of a block, with a traced derivative of `chunks.read_with` for each chunk."""
    boundary, do, dlast, dq, dk, dv, *rest = refs.others
    of_weights = {name: rest.pop(0) for name in UnitWeights._fields if name in refs.named}
    dstate, carried, entering, *rest = rest
    sums, inverses = (rest[:2], rest[2:]) if grid.shares > 1 else ((), rest)
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

        tokens, weights = refs.tokens(grid, number, unit), refs.weights(grid, number, unit)
        return read_unit(state, tokens, weights, refs.reset(number), keep, reverse=reverse)[0]

    def pull(unit, step, _):
        count = grid.chunks - 1 - step
        number = number_of(count)
        where = chunk_tokens(grid, number)

        def kept(_):
            return inverses[0][count, unit]

        def read(state, tokens, weights):
            return read_unit(state, tokens, weights, refs.reset(number), kept, reverse=reverse)

        tokens, weights = refs.tokens(grid, number, unit), refs.weights(grid, number, unit)
        _, pull_back = jax.vjp(read, entering[count, unit], tokens, weights)
        at = own.start + unit
        found = pull_back((carried[at], do[0, where, lanes(grid.width, unit)]))
        carried[at] = found[0]
        for ref, array in zip(sums or (dq, dk), found[1][:2], strict=True):
            if sums:
                ref[where] += array.astype(ref.dtype)
            else:
                ref[0, where, lanes(grid.d_k, unit)] = array.astype(ref.dtype)
        dv[0, where, lanes(grid.width, unit)] = found[1][2].astype(dv.dtype)
        for name, ref in of_weights.items():
            cotangent = getattr(found[2], name)
            if name == "skip":
                ref[0, 0, 0, :, lanes(grid.width, unit)] += cotangent
                continue
            rows, heads = (cotangent, heads_of(grid, unit)) if name != "beta" else ([cotangent], [unit])
            for head, row in zip(heads, rows, strict=True):
                ref[0, head, 0, pl.ds(number, 1), :] = row
        return 0

    if "skip" in of_weights:
        of_weights["skip"][...] = jnp.zeros_like(of_weights["skip"])

    @pl.when(pl.program_id(3) == 0)
    def _():
        for ref in sums:
            ref[...] = jnp.zeros_like(ref)

    # One unit after the other: two at once need more registers than there are.
    for unit in range(grid.units):
        first = boundary[0, unit, 0].astype(jnp.float32)
        jax.lax.fori_loop(0, grid.chunks, functools.partial(keep_entering, unit), first)
        jax.lax.fori_loop(0, grid.chunks, functools.partial(pull, unit), 0)
    give_states(grid, carried, dstate)

    @pl.when(pl.program_id(3) == grid.steps - 1)
    def _():
        for total, ref in zip(sums, (dq, dk), strict=False):
            ref[...] = total[...].reshape(ref.shape).astype(ref.dtype)
