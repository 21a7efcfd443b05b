"""The grid steps of the TPU kernels. See `tpu`.

The functions take the grid of the call and the references, under the names of `tpu`. A value of the
recurrence is [columns, 128], one channel per lane: the row of one time step, folded. Scratch memory holds
the spans of the groups of 128 channels one below the other, an odd number of rows apart, so one strided
load folds a row.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.gated_scan.cell import sigmoid
from pallas_kernels.linear_scan.tpu_call import TpuGrid
from pallas_kernels.linear_scan.tpu_chunks import LANES, TILE, not_reset_mask, rows_of

SPAN = 128
"""The number of steps between kept states, which is the number of lanes of a register of B and C."""
STRIDE = SPAN + 1
STATES = 4
"""The number of states computed side by side. B and C of four states fill the 8 rows of a register."""
SUBLANES = 8
TILES = SPAN // TILE
UNROLLED = 2
"""The number of tiles in a turn of a loop, except in the gradient's recurrence."""
ODD = SUBLANES + 1
PRODUCTS = SUBLANES * ODD
# The step of a reset: exp(dt A) is 0 for every A that `tpu` passes, and a product with zero is not NaN.
RESET_STEP = 1e38


class _Span(NamedTuple):
    """A span of a block.

    Attributes:
        grid: the grid of the call.
        refs: the references by name.
        index: the index of the span in its block.
    """

    grid: TpuGrid
    refs: dict[str, Any]
    index: jax.Array

    @property
    def groups(self):
        """The number of groups of four states."""
        return self.refs["carry"].shape[0] // STATES

    def tile_of_block(self, tile):
        return self.index * TILES + tile

    def load(self, name, tile, k):
        """Return a tile of a sequence, [16, 128], in float32."""
        return self.refs[name][0, rows_of(self.tile_of_block(tile)), _lanes(k)].astype(jnp.float32)

    def store(self, name, tile, k, value):
        ref = self.refs[name]
        ref[0, rows_of(self.tile_of_block(tile)), _lanes(k)] = value.astype(ref.dtype)

    def vector(self, name, k):
        return self.refs[name][:, _lanes(k)]

    def not_reset(self, tile):
        return not_reset_mask(self.refs.get("bits"), self.tile_of_block(tile))

    def at(self, step):
        """Return the rows of scratch memory with a step of every group of channels."""
        return pl.ds(step, self.grid.columns, stride=STRIDE)

    def columns(self, group):
        """Return B and C of four states, [8, 128], with steps on the lanes."""
        lanes = pl.ds(pl.multiple_of(self.index * SPAN, SPAN), SPAN)
        return self.refs["fours"][_register(group), lanes]


def _lanes(k):
    return pl.ds(k * LANES, LANES)


def _register(index, offset=0):
    return pl.ds(pl.multiple_of(SUBLANES * index, SUBLANES) + SUBLANES * offset, SUBLANES)


def _kept(tile, k):
    """Return the rows of scratch memory with a tile of a group of channels."""
    return pl.ds(k * STRIDE + tile * TILE, TILE)


def _for_each(
    count: int, descending: bool, body: Callable[..., Any], carried: Any = 0, unroll: int = 1
) -> Any:
    """Run carried = body(index, carried) over `count` indices."""

    def run(turn, carried):
        return body(count - 1 - turn if descending else turn, carried)

    return jax.lax.fori_loop(0, count, run, carried, unroll=unroll)


def _for_each_tile(span, body, before=None):
    """Run body(tile, group of channels) for all of a span, and before(tile) once per tile."""

    def run(tile, carried):
        if before:
            before(tile)
        for k in range(span.grid.columns):
            body(tile, k)
        return carried

    _for_each(TILES, False, run, unroll=UNROLLED)


def _softplus(raw):
    return jnp.maximum(raw, 0) + jnp.log1p(jnp.exp(-jnp.abs(raw)))


def _prepare(span, tile, k):
    """Write dt and dt * u of a tile to scratch memory; return u and dt, the step sizes."""
    refs = span.refs
    dt, u = span.load("dt", tile, k), span.load("u", tile, k)
    if "dt_bias" in refs:
        dt = _softplus(dt + span.vector("dt_bias", k))
    mask, kept = span.not_reset(tile), _kept(tile, k)
    refs["decay_dt"][kept] = dt if mask is None else jnp.where(mask, dt, RESET_STEP)
    refs["dt_u"][kept] = dt * u
    return u, dt


def _spread(span, turn, tile):
    """Write B and C of each step of a tile to scratch memory, each number to all lanes of a row."""
    first, together = tile * TILE, groups_together(span.groups)
    columns = [
        pltpu.roll(span.columns(turn * together + place), jax.lax.rem(LANES - first, LANES), 1)
        for place in range(together)
    ]
    for t in range(TILE):
        for place, values in enumerate(columns):
            rows = _register(place * SPAN + first, t)
            span.refs["weights"][rows] = jnp.broadcast_to(values[:, t : t + 1], (SUBLANES, LANES))


def _for_each_group(span, body):
    """Run body(group, place) for each group of four states. `_spread` puts their B and C at `place`.

    The caller spreads those of the first turn, to overlap with arithmetic that does not need them.
    """
    together = groups_together(span.groups)
    turns = span.groups // together

    def run(turn, carried):
        if turns > 1:
            jax.lax.fori_loop(jnp.where(turn == 0, TILES, 0), TILES, partial(spread, turn), 0)
        _for_each(together, False, lambda place, carried: body(turn * together + place, place))
        return carried

    def spread(turn, tile, carried):
        _spread(span, turn, tile)
        return carried

    _for_each(turns, False, run)


def groups_together(groups: int) -> int:
    """Return how many groups of four states to spread at once: at most 4, to fit the memory."""
    return max(n for n in range(1, 5) if groups % n == 0)


def _weights(span, place, step):
    """Return B and C of four states at a step, each [1, 128]."""
    first = SUBLANES * (place * SPAN + step)
    rows = [span.refs["weights"][pl.ds(first + j, 1)] for j in range(SUBLANES)]
    return rows[:STATES], rows[STATES:]


def _sweep(span, group, place, h, *, reverse, output):
    """Run four states over a span.

    Args:
        span: the span.
        group: the index of the four states.
        place: the place of their B and C in "weights".
        h: the states that enter, each [columns, 128].
        reverse: whether to read the span from its end.
        output: the name of the scratch array to which to add the sums over n of C_n h_n; or None.

    Returns:
        The states that leave. If there is scratch memory "states", it holds the states before and after
        each step.
    """
    refs = span.refs
    A = [refs["A"][group * STATES + j, 0] for j in range(STATES)]

    def run_tile(tile, h):
        h, first = list(h), tile * TILE
        for t in range(TILE)[::-1] if reverse else range(TILE):
            at = span.at(first + t)
            dt, dt_u = refs["decay_dt"][at], refs["dt_u"][at]
            B, C = _weights(span, place, first + t)
            for j in range(STATES):
                if "states" in refs:
                    refs["states"][first + t + reverse, j] = h[j]
                h[j] = jnp.exp2(dt * A[j]) * h[j] + dt_u * B[j]
            if output:
                refs[output][at] += _sum(C[j] * h[j] for j in range(STATES))
        return tuple(h)

    h = _for_each(TILES, reverse, run_tile, tuple(h), unroll=UNROLLED)
    if "states" in refs:
        for j in range(STATES):
            refs["states"][0 if reverse else SPAN, j] = h[j]
    return h


def _sum(values):
    """Add values in pairs."""
    values = list(values)
    while len(values) > 1:
        values = [sum(values[i + 1 : i + 2], values[i]) for i in range(0, len(values), 2)]
    return values[0]


def _carry(refs, group):
    return [refs["carry"][group * STATES + j] for j in range(STATES)]


def _keep_carry(refs, group, values):
    for j in range(STATES):
        refs["carry"][group * STATES + j] = values[j]


def _start(refs, carried):
    """Put B above C for each four states. In the first block, load the carry from `carried`."""
    columns = refs["columns"][0].astype(jnp.float32)
    states = columns.shape[0] // 2
    for first in range(0, states, STATES):
        for row, source in ((0, first), (STATES, states + first)):
            refs["fours"][pl.ds(2 * first + row, STATES)] = columns[source : source + STATES]

    @pl.when(pl.program_id(2) == 0)
    def _():
        refs["carry"][...] = refs[carried][0, :, 0]


def forward(grid, refs, *, reverse):
    """Compute a block of y, and the state that leaves it, from the state that enters it."""
    _start(refs, "h0")

    def run_span(index, carried):
        span = _Span(grid, refs, index)
        refs["kept_h0"][0, index, :, 0] = refs["carry"][...]

        def prepare(tile, k):
            u, _ = _prepare(span, tile, k)
            refs["sums"][_kept(tile, k)] = span.vector("D", k) * u

        def finish(tile, k):
            y = refs["sums"][_kept(tile, k)]
            if "z" in refs:
                z = span.load("z", tile, k)
                y *= z * sigmoid(z)
            span.store("y", tile, k, y)

        def run_group(group, place):
            leaving = _sweep(span, group, place, _carry(refs, group), reverse=reverse, output="sums")
            _keep_carry(refs, group, leaving)
            return 0

        _for_each_tile(span, prepare, partial(_spread, span, 0))
        _for_each_group(span, run_group)
        _for_each_tile(span, finish)
        return carried

    _for_each(grid.rows // SPAN, reverse, run_span)
    refs["last"][0, :, 0] = refs["carry"][...]


def backward(grid, refs, *, reverse):
    """Compute a block of all cotangents, from the states that enter its spans and the last cotangent."""
    _start(refs, "dlast")
    row_sums = [name for name in ("dD", "ddt_bias") if name in refs]

    @pl.when(pl.program_id(2) == 0)
    def _():
        for name in ("dA", *row_sums):
            refs[name][...] = jnp.zeros_like(refs[name])

    def run_span(index, carried):
        span = _Span(grid, refs, index)

        def prepare(tile, k):
            kept = _kept(tile, k)
            refs["plain_dt"][kept] = _prepare(span, tile, k)[1]
            dv = span.load("dy", tile, k)
            if "z" in refs:
                z = span.load("z", tile, k)
                dv *= z * sigmoid(z)
                refs["scanned"][kept] = jnp.zeros((TILE, LANES), jnp.float32)
            refs["dv"][kept] = dv
            refs["g_B"][kept] = refs["dlog_A"][kept] = jnp.zeros((TILE, LANES), jnp.float32)

        def run_group(group, place):
            entering = [refs["kept_h0"][0, index, group * STATES + j, 0] for j in range(STATES)]
            _sweep(span, group, place, entering, reverse=reverse, output="scanned" if "z" in refs else None)
            dh, dA, dcolumns = _pull(span, group, place, _carry(refs, group), reverse=reverse)
            _keep_carry(refs, group, dh)
            lanes = pl.ds(pl.multiple_of(index * SPAN, SPAN), SPAN)
            refs["dcolumns"][0, 0, _register(group), lanes] = dcolumns
            for j in range(STATES):
                refs["dA"][0, group * STATES + j, 0] += dA[j]
            return 0

        _for_each_tile(span, prepare, partial(_spread, span, 0))
        _for_each_group(span, run_group)
        _for_each_tile(span, partial(_finish, span))
        return carried

    _for_each(grid.rows // SPAN, not reverse, run_span)
    refs["dh0"][0, :, 0] = refs["carry"][...]


def _pull(span, group, place, dh, *, reverse):
    """Run the recurrence of the cotangents of four states over a span.

    It adds the sums over n of g_n B_n to "g_B", and those of A_n log2(e) times the cotangent of dt A_n to
    "dlog_A".

    Args:
        span: the span, after `_sweep`.
        group: the index of the four states.
        place: the place of their B and C in "weights".
        dh: the cotangents of the states that leave.
        reverse: whether `_sweep` read the span from its end.

    Returns:
        The cotangents of the states that enter; the span's term of the cotangent of A; the cotangents of B
        and C, [8, 128] as `_Span.columns`.
    """
    refs = span.refs
    A = [refs["A"][group * STATES + j, 0] for j in range(STATES)]
    lane = jax.lax.broadcasted_iota(jnp.int32, (SUBLANES, LANES), 1)

    def run_tile(tile, carried):
        dh, dA, dcolumns = carried
        dh, dA, first = list(dh), list(dA), tile * TILE
        for t in range(TILE) if reverse else range(TILE)[::-1]:
            at = span.at(first + t)
            dt, dt_u, dv = refs["decay_dt"][at], refs["dt_u"][at], refs["dv"][at]
            B, C = _weights(span, place, first + t)
            g_B, dlog_A = [], []
            for j in range(STATES):
                before = refs["states"][first + t + reverse, j]
                after = refs["states"][first + t + (not reverse), j]
                g = dh[j] + dv * C[j]
                dh[j] = jnp.exp2(dt * A[j]) * g
                dlog = dh[j] * before
                dA[j] += dt * dlog
                g_B.append(g * B[j])
                dlog_A.append(dlog * A[j])
                for product, row in ((g * dt_u, j), (after * dv, STATES + j)):
                    rows = pl.ds(PRODUCTS * t + ODD * row, span.grid.columns)
                    refs["products"][rows] = product
            refs["g_B"][at] += _sum(g_B)
            refs["dlog_A"][at] += _sum(dlog_A)
            folded = _sum(
                refs["products"][pl.ds(PRODUCTS * t + k, SUBLANES, stride=ODD)]
                for k in range(span.grid.columns)
            )
            dcolumns = jnp.where(lane == first + t, jnp.sum(folded, axis=1, keepdims=True), dcolumns)
        return tuple(dh), tuple(dA), dcolumns

    zero = jnp.zeros((span.grid.columns, LANES), jnp.float32)
    carried = (tuple(dh), (zero,) * STATES, jnp.zeros((SUBLANES, LANES), jnp.float32))
    return _for_each(TILES, not reverse, run_tile, carried)


def _finish(span, tile, k):
    """Write the cotangents of a tile of the sequences; add to the cotangents of D and of dt's bias."""
    refs, kept = span.refs, _kept(tile, k)
    u, dt, dv, g_B = span.load("u", tile, k), refs["plain_dt"][kept], refs["dv"][kept], refs["g_B"][kept]
    D = span.vector("D", k)
    span.store("du", tile, k, dt * g_B + D * dv)
    refs["dD"][0, :, _lanes(k)] += jnp.sum(dv * u, axis=0, keepdims=True)
    if "z" in refs:
        z = span.load("z", tile, k)
        gate = sigmoid(z)
        dgate = span.load("dy", tile, k) * (refs["scanned"][kept] + D * u)
        span.store("dz", tile, k, dgate * gate * (1 + z * (1 - gate)))
    ddt = math.log(2) * refs["dlog_A"][kept] + u * g_B
    if "dt_bias" in refs:
        # exp(raw - softplus(raw)) is sigmoid(raw), accurate also where raw is far below zero.
        ddt *= jnp.exp(span.load("dt", tile, k) + span.vector("dt_bias", k) - dt)
        refs["ddt_bias"][0, :, _lanes(k)] += jnp.sum(ddt, axis=0, keepdims=True)
    span.store("ddt", tile, k, ddt)
