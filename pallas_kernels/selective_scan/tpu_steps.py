"""The grid steps of the TPU kernels: 16 steps of time at a time, states on the sublanes. See `tpu`.

Every function takes the grid of the call and the references by the names of `tpu`.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.gated_scan.cell import sigmoid
from pallas_kernels.linear_scan.tpu_chunks import LANES, TILE, rows_of

TILES_OF_LANES = LANES // TILE
SUBLANES = 8


class _Tile:
    """What the steps of a tile read, in float32.

    Attributes:
        index: the tile's number in its block.
        u: the inputs [16, channels].
        raw: the steps before the softplus.
        dt: the steps.
        columns: B and below it C [2 N, 128], step t of the tile in lane t.
        resets: the word whose bit t tells whether step t is a reset; None: there are none.
    """

    def __init__(self, refs, index):
        self.refs, self.index = refs, index
        self.u = self.load("u")
        self.raw = self.load("dt")
        self.dt = self.raw
        if "dt_bias" in refs:
            self.raw += refs["dt_bias"][...]
            self.dt = jnp.maximum(self.raw, 0) + jnp.log1p(jnp.exp(-jnp.abs(self.raw)))
        group = refs["columns"][0, :, self.lanes].astype(jnp.float32)
        self.columns = pltpu.roll(group, -self.first_lane % LANES, 1)
        self.resets = refs["bits"][0, 0, 0, index] if "bits" in refs else None

    @property
    def first_lane(self):
        """The lane of the tile's first step in a group of 128."""
        return TILE * jax.lax.rem(self.index, TILES_OF_LANES)

    @property
    def lanes(self):
        """The lanes of the group of 128 steps in which the tile is."""
        return pl.ds(pl.multiple_of(LANES * jax.lax.div(self.index, TILES_OF_LANES), LANES), LANES)

    def load(self, name):
        return self.refs[name][0, rows_of(self.index)].astype(jnp.float32)

    def store(self, name, value):
        ref = self.refs[name]
        ref[0, rows_of(self.index)] = value.astype(ref.dtype)

    def weights(self, t):
        """Return B and C of step t, each [N, 1]."""
        states = self.columns.shape[0] // 2
        return self.columns[:states, t : t + 1], self.columns[states:, t : t + 1]

    def transition(self, A, t):
        """Return the decays of step t, zero at a reset, and the addends, each [N, channels]."""
        dt, u = _row(self.dt, t), _row(self.u, t)
        decays = jnp.exp(dt * A)
        if self.resets is not None:
            decays *= (1 - (jax.lax.shift_right_logical(self.resets, t) & 1)).astype(jnp.float32)
        return decays, (dt * u) * self.weights(t)[0]


def _row(values, t):
    return values[t : t + 1]


def _sum_states(values):
    return jnp.sum(values, axis=0, keepdims=True)


def _sum_channels(values):
    return jnp.sum(values, axis=1, keepdims=True)


def _stacked(rows):
    """Return the [1, channels] of each step as a tile, one register of 8 rows after the other."""
    parts = []
    for first in range(0, TILE, SUBLANES):
        part = jnp.broadcast_to(rows[first], (SUBLANES, rows[first].shape[1]))
        place = jax.lax.broadcasted_iota(jnp.int32, part.shape, 0)
        for k in range(1, SUBLANES):
            part = jnp.where(place == k, rows[first + k], part)
        parts.append(part)
    return jnp.concatenate(parts)


def _side_by_side(columns):
    """Return the [N, 1] of each step in the first lanes of [N, 128], the others zero."""
    result = jnp.zeros((columns[0].shape[0], LANES), jnp.float32)
    place = jax.lax.broadcasted_iota(jnp.int32, result.shape, 1)
    for t, column in columns.items():
        result = jnp.where(place == t, column, result)
    return result


def _steps(descending):
    """Return the steps of a tile in order."""
    return range(TILE)[::-1] if descending else range(TILE)


def _for_each_tile(grid, descending, body, carried):
    """Run carried = body(tile, carried) over the tiles of a block."""
    tiles = grid.rows // TILE

    def run(count, carried):
        return body(tiles - 1 - count if descending else count, carried)

    return jax.lax.fori_loop(0, tiles, run, carried)


def forward(grid, refs, *, reverse):
    """Compute a block of y from the state that enters it, and the state that leaves it."""
    A, D = refs["A"][...], refs["D"][...]
    entering = jnp.where(pl.program_id(2) == 0, refs["h0"][0], refs["carry"][...])
    refs["block_h0"][0, 0] = entering

    def run_tile(index, h):
        tile = _Tile(refs, index)
        rows = {}
        for t in _steps(reverse):
            decays, addends = tile.transition(A, t)
            h = decays * h + addends
            rows[t] = _sum_states(tile.weights(t)[1] * h)
        y = _stacked(rows) + D * tile.u
        if "z" in refs:
            z = tile.load("z")
            y *= z * sigmoid(z)
        tile.store("y", y)
        return h

    leaving = _for_each_tile(grid, reverse, run_tile, entering)
    refs["carry"][...] = leaving
    refs["last"][0] = leaving


def backward(grid, refs, *, reverse):
    """Compute a block of all cotangents from the state that enters it and that of the state leaving it."""
    A, D = refs["A"][...], refs["D"][...]
    is_first = pl.program_id(2) == 0

    def keep_entering(index, h):
        tile = _Tile(refs, index)
        refs["tile_h0"][index] = h
        for t in _steps(reverse):
            decays, addends = tile.transition(A, t)
            h = decays * h + addends
        return h

    _for_each_tile(grid, reverse, keep_entering, refs["block_h0"][0, 0])
    refs["dcolumns"][...] = jnp.zeros_like(refs["dcolumns"])

    def run_tile(index, carried):
        dh, dA, dD, ddt_bias = carried
        tile = _Tile(refs, index)
        decays, states, scanned = _recompute(tile, A, refs["tile_h0"][index], reverse)
        dy = dv = tile.load("dy")
        if "z" in refs:
            z = tile.load("z")
            gate = sigmoid(z)
            dv = dy * z * gate
            tile.store("dz", dy * (scanned + D * tile.u) * gate * (1 + z * (1 - gate)))
        dh, dA, g_B, dlog_A, dcolumns = _pull(tile, A, decays, states, dv=dv, dh=dh, dA=dA, reverse=reverse)
        refs["dcolumns"][0, 0, :, tile.lanes] += pltpu.roll(dcolumns, tile.first_lane, 1)
        tile.store("du", tile.dt * g_B + D * dv)
        ddt = dlog_A + tile.u * g_B
        if "dt_bias" in refs:
            # The sigmoid of the raw step without loss where that is far below zero.
            ddt *= jnp.exp(tile.raw - tile.dt)
        tile.store("ddt", ddt)
        return dh, dA, dD + dv * tile.u, ddt_bias + ddt

    zeros = jnp.zeros((TILE, A.shape[1]), jnp.float32)
    dh = jnp.where(is_first, refs["dlast"][0], refs["carry"][...])
    carried = (dh, jnp.zeros_like(A), zeros, zeros)
    dh, dA, dD, ddt_bias = _for_each_tile(grid, not reverse, run_tile, carried)
    refs["carry"][...] = dh
    refs["dh0"][0] = dh
    sums = {"dA": dA, "dD": _sum_states(dD), "ddt_bias": _sum_states(ddt_bias)}
    for name, value in sums.items():
        if name in refs:
            refs[name][0] = jnp.where(is_first, 0.0, refs[name][0]) + value


def _recompute(tile, A, h, reverse):
    """Run the steps of a tile from the state `h` that enters it.

    Returns:
        In reading order the decays of each step, the states before each step and after the last; and the
        sum over n of C_n h_n, [16, channels].
    """
    all_decays, states, rows = [], [h], {}
    for t in _steps(reverse):
        decays, addends = tile.transition(A, t)
        all_decays.append(decays)
        states.append(decays * states[-1] + addends)
        rows[t] = _sum_states(tile.weights(t)[1] * states[-1])
    return all_decays, states, _stacked(rows)


def _pull(tile, A, decays, states, *, dv, dh, dA, reverse):
    """Take the cotangent of the state back through the steps of a tile.

    Args:
        tile: the tile.
        A: the rates.
        decays: of `_recompute`.
        states: of `_recompute`.
        dv: the cotangent of the output before the gate.
        dh: the cotangent of the state that leaves the tile.
        dA: the sum so far of the cotangent of A.
        reverse: whether the tile is read from its end.

    Returns:
        The cotangent of the state that enters, the new sum for A; for each step the sums over n of g_n B_n
        and of A_n times the cotangent of dt A_n, [16, channels]; and the cotangents of B and C, [2 N, 128].
    """
    g_B, dlog_A, dB, dC = {}, {}, {}, {}
    for place, t in reversed(list(enumerate(_steps(reverse)))):
        B, C = tile.weights(t)
        dt, dv_t = _row(tile.dt, t), _row(dv, t)
        g = dh + dv_t * C
        dh = decays[place] * g
        dlog = dh * states[place]
        dA += dt * dlog
        g_B[t] = _sum_states(g * B)
        dlog_A[t] = _sum_states(dlog * A)
        dB[t] = _sum_channels(g * (dt * _row(tile.u, t)))
        dC[t] = _sum_channels(states[place + 1] * dv_t)
    dcolumns = jnp.concatenate([_side_by_side(dB), _side_by_side(dC)])
    return dh, dA, _stacked(g_B), _stacked(dlog_A), dcolumns
