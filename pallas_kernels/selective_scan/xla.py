"""selective_scan in plain XLA: a loop over time on CPU, a parallel prefix within chunks elsewhere.

Decays and addends are N times as wide as the input. They exist for one step or one chunk at a time, never
for the whole length. The gradient keeps the state that enters every `CHUNK` steps and recomputes the rest,
a chunk at a time (Chen et al. 2016; for scans Gu and Dao 2023, appendix D).

On CPU, a step is one pass over a state [rows, N, channels], with one row per batch row and direction. A
single row has no axis: with an axis of size 1, XLA's CPU compiler (of JAX 0.10) chooses another layout of
the state, and a step takes six times as long. On accelerators, a loop of thousands of tiny steps leaves the
device idle; there each chunk is a parallel prefix (Blelloch 1990). JAX chooses when it lowers the program.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pallas_kernels.rematerialisation import named
from pallas_kernels.selective_scan.inputs import SelectiveScanInputs, Sequence, State

CHUNK = 64

Rates = Float[Array, "*ways N channels"]
States = Float[Array, "*rows N channels"]


class _Steps(NamedTuple):
    """The inputs of the steps of a scan, in float32 and in reading order. Time is the first axis.

    The next axes are the directions and the batch. Axes of size 1 are left out.

    Attributes:
        dt: the step sizes.
        u: the inputs.
        B: the weights of the input.
        C: the weights of the output.
        reset: True where nothing enters from the previous step; None for no resets.
    """

    dt: Float[Array, "*time_and_rows channels"]
    u: Float[Array, "*time_and_rows channels"]
    B: Float[Array, "*time_and_rows N"]
    C: Float[Array, "*time_and_rows N"]
    reset: Bool[Array, "*time_and_rows"] | None


def selective_scan(inputs: SelectiveScanInputs, direction: str) -> tuple[Sequence, State]:
    """Return y in the dtype of `u`, and the last state in float32. JAX can differentiate it.

    Args:
        inputs: the arrays.
        direction: "forward", "reverse", or "both": the second half of the channels in reverse.
    """
    u, dt, A, B, C, D = (array.astype(jnp.float32) for array in inputs[:6])
    if inputs.dt_bias is not None:
        dt = jax.nn.softplus(dt + inputs.dt_bias.astype(jnp.float32))
    ways = {"forward": (False,), "reverse": (True,), "both": (False, True)}[direction]
    parts = len(ways)

    def in_reading_order(arrays):
        """Stack the arrays [time, ...] of all directions, flipped in time for the reverse direction."""
        turned = [array[::-1] if reverse else array for array, reverse in zip(arrays, ways, strict=True)]
        return _without_ones(jnp.stack(turned, axis=1), slice(1, 3))

    def halves(array):
        return jnp.split(array.swapaxes(0, 1), parts, axis=-1)

    def shared(array):
        return [array.swapaxes(0, 1)] * parts

    resets = inputs.resets
    steps = _Steps(
        dt=in_reading_order(halves(dt)),
        u=in_reading_order(halves(u)),
        B=in_reading_order(shared(B)),
        C=in_reading_order(shared(C)),
        reset=None if resets is None else in_reading_order([reset.swapaxes(0, 1) for reset in resets]),
    )
    rates = _without_ones(jnp.stack(jnp.split(A, parts, axis=-1)), slice(0, 1))
    if parts > 1 and u.shape[0] > 1:
        rates = rates[:, None]
    h0 = jnp.stack(jnp.split(inputs.h0, parts, axis=-1))
    y, last = _scan(rates, _without_ones(h0, slice(0, 2)), steps)
    y, last = y.reshape(len(y), *h0.shape[:2], h0.shape[-1]), last.reshape(h0.shape)
    halves_of_y = [y[::-1, part] if reverse else y[:, part] for part, reverse in enumerate(ways)]
    y = jnp.concatenate(halves_of_y, axis=-1).swapaxes(0, 1)
    last = jnp.concatenate(list(last), axis=-1)
    y += D * u
    if inputs.z is not None:
        y *= jax.nn.silu(inputs.z.astype(jnp.float32))
    return y.astype(inputs.u.dtype), last


def _without_ones(array, axes):
    """Remove the axes among `axes` that have size 1."""
    return array.squeeze(tuple(axis for axis in range(array.ndim)[axes] if array.shape[axis] == 1))


@jax.custom_vjp
def _scan(A: Rates, h0: States, steps: _Steps) -> tuple[Float[Array, "time *rows channels"], States]:
    return _scan_forward(A, h0, steps)[0]


def _scan_forward(A, h0, steps):
    length = steps.u.shape[0]

    def run(scan_chunk, A, h0, chunks):
        def pass_chunk(h, chunk):
            y, leaving = scan_chunk(A, h, chunk)
            return leaving, (y, h)

        return jax.lax.scan(pass_chunk, h0, chunks)

    last, (y, entering) = jax.lax.platform_dependent(
        A, h0, _chunked(steps), cpu=partial(run, _loop_forward), default=partial(run, _prefix_forward)
    )
    y, last, entering = named((_whole(y, length), last, entering))
    return (y, last), (A, entering, steps)


def _scan_backward(residuals, cotangents):
    A, entering, steps = residuals
    dy, dlast = cotangents
    length = steps.u.shape[0]

    def run(pull_chunk, A, dlast, chunks):
        def pass_chunk(carried, chunk):
            dh, dA = carried
            dh, dA_chunk, found = pull_chunk(A, dh, *chunk)
            return (dh, dA + dA_chunk), found

        return jax.lax.scan(pass_chunk, (dlast, jnp.zeros_like(dlast)), chunks, reverse=True)

    (dh0, dA), found = jax.lax.platform_dependent(
        A,
        dlast,
        (entering, _chunked(steps), _chunked(dy)),
        cpu=partial(run, _loop_backward),
        default=partial(run, _prefix_backward),
    )
    return _summed_to(A.shape, dA), dh0, _Steps(*(_whole(values, length) for values in found), reset=None)


_scan.defvjp(_scan_forward, _scan_backward)


def _summed_to(shape, values):
    """Sum `values` over the axes along which an array of `shape` was broadcast."""
    values = values.sum(axis=tuple(range(values.ndim - len(shape))))
    spread = tuple(axis for axis, size in enumerate(shape) if size != values.shape[axis])
    return values.sum(axis=spread, keepdims=True)


def _chunked(tree):
    """Cut the first axis into chunks; pad the last one with dt = 0, which leaves the state unchanged."""

    def cut(values):
        chunk = min(CHUNK, values.shape[0])
        padding = [(0, -values.shape[0] % chunk)] + [(0, 0)] * (values.ndim - 1)
        return jnp.pad(values, padding).reshape(-1, chunk, *values.shape[1:])

    return jax.tree.map(cut, tree)


def _whole(values, length):
    """Undo `_chunked`."""
    return values.reshape(-1, *values.shape[2:])[:length]


def _decays(A, steps):
    """Return exp(dt A), zero at resets, [..., N, channels]."""
    decays = jnp.exp(steps.dt[..., None, :] * A)
    return decays if steps.reset is None else jnp.where(steps.reset[..., None, None], 0.0, decays)


def _addends(steps):
    """Return dt u B, [..., N, channels]."""
    return (steps.dt * steps.u)[..., None, :] * steps.B[..., None]


def _readout(h, steps):
    """Return the sum over n of C_n h_n."""
    return jnp.sum(steps.C[..., None] * h, axis=-2)


def _loop_forward(A, h, chunk):
    """Return y of a chunk, and the state that leaves it."""

    def step(h, steps):
        h = _decays(A, steps) * h + _addends(steps)
        return h, _readout(h, steps)

    leaving, y = jax.lax.scan(step, h, chunk)
    return y, leaving


def _loop_backward(A, dleaving, h, chunk, dy):
    """Return the cotangents of the state that enters a chunk, of A, and of the steps (`_Steps`)."""

    def recompute(h, now):
        steps, dy = now
        leaving = _decays(A, steps) * h + _addends(steps)
        return leaving, (h, _sum_channels(leaving, dy))

    def step(carried, now):
        dh, dA = carried
        steps, h_prev, dy = now
        g = dh + dy[..., None, :] * steps.C[..., None]
        dh = _decays(A, steps) * g
        dA_step, found = _gradients(A, steps, g, dlog_decay=dh * h_prev)
        return (dh, dA + dA_step), found

    _, (h_prev, dC) = jax.lax.scan(recompute, h, (chunk, dy))
    start = dleaving, jnp.zeros_like(dleaving)
    (dh, dA), found = jax.lax.scan(step, start, (chunk, h_prev, dy), reverse=True)
    return dh, dA, (*found, dC)


def _prefix_forward(A, h, chunk):
    """Do the work of `_loop_forward` with a parallel prefix."""
    states = _prefix(_decays(A, chunk), _addends(chunk), h)
    return _readout(states, chunk), states[-1]


def _prefix_backward(A, dleaving, h, chunk, dy):
    """Do the work of `_loop_backward` with a parallel prefix."""
    decays = _decays(A, chunk)
    states = _prefix(decays, _addends(chunk), h)
    h_prev = jnp.concatenate([h[None], states[:-1]])
    # g[t] = dy[t] C[t] + decay[t+1] g[t+1]. The cotangent of the leaving state enters with decay 1.
    following = jnp.concatenate([jnp.ones_like(decays[:1]), decays[:0:-1]])
    g = _prefix(following, (dy[..., None, :] * chunk.C[..., None])[::-1], dleaving)[::-1]
    dA, found = _gradients(A, chunk, g, dlog_decay=decays * g * h_prev)
    return decays[0] * g[0], dA.sum(axis=0), (*found, _sum_channels(states, dy))


def _prefix(decays, addends, first):
    """Return h[t] = decays[t] h[t-1] + addends[t] for all t along the first axis, with h[-1] = `first`."""

    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    addends = addends.at[0].add(decays[0] * first)
    return jax.lax.associative_scan(combine, (decays, addends))[1]


def _gradients(A, steps, g, *, dlog_decay):
    """Return the cotangent of A per row, and the cotangents of dt, u and B.

    Args:
        A: the rates.
        steps: one step, or several along a first axis.
        g: the cotangent of the state after each step.
        dlog_decay: the cotangent of the logarithm of its decay.
    """
    g_B = jnp.sum(g * steps.B[..., None], axis=-2)
    ddt = jnp.sum(dlog_decay * A, axis=-2) + steps.u * g_B
    dB = _sum_channels(g, steps.dt * steps.u)
    return steps.dt[..., None, :] * dlog_decay, (ddt, steps.dt * g_B, dB)


def _sum_channels(states, weights):
    """Sum states [.., N, channels] over the channels with weights [.., channels]."""
    return jnp.einsum("...nc,...c->...n", states, weights, precision="highest")
