"""linear_scan in plain XLA: a loop over time on CPU, a parallel prefix elsewhere.

On CPU a time-major loop reads every element once and was measured several times faster than the parallel
prefix; on accelerators a loop of thousands of tiny steps leaves the device idle, and the parallel prefix
(Blelloch 1990) wins although it moves more bytes. The choice is made when a program is lowered, so that a
program compiled ahead of time gets what its own platform needs.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Sequence = Float[Array, "batch length channels"]
State = Float[Array, "batch channels"]


def forward(a: Sequence, x: Sequence, h0: State, *, reverse: bool) -> Sequence:
    """Return h of shape [batch, length, channels] in the type of `x`; carry in float32."""
    return jax.lax.platform_dependent(
        a,
        x,
        h0,
        cpu=lambda a, x, h0: _forward_loop(a, x, h0, reverse),
        default=lambda a, x, h0: _forward_prefix(a, x, h0, reverse),
    )


def backward(
    a: Sequence, h: Sequence, h0: State, dh: Sequence, *, reverse: bool
) -> tuple[Sequence, Sequence, Float[Array, "batch channels"]]:
    """Return (da, dx, dh0) for the cotangent `dh` of h."""
    return jax.lax.platform_dependent(
        a,
        h,
        h0,
        dh,
        cpu=lambda a, h, h0, dh: _backward_loop(a, h, h0, dh, reverse),
        default=lambda a, h, h0, dh: _backward_prefix(a, h, h0, dh, reverse),
    )


def _time_major(y):
    return jnp.swapaxes(y, 0, 1)


def _previous(y, first, reverse):
    """y[t-1] at t in reading order, with `first` before the first step read."""
    first = first[:, None].astype(y.dtype)
    if reverse:
        return jnp.concatenate([y[:, 1:], first], axis=1)
    return jnp.concatenate([first, y[:, :-1]], axis=1)


def _forward_loop(a, x, h0, reverse):
    def step(h, ax):
        a_t, x_t = ax
        h = a_t.astype(jnp.float32) * h + x_t.astype(jnp.float32)
        return h, h.astype(x.dtype)

    _, h = jax.lax.scan(step, h0.astype(jnp.float32), (_time_major(a), _time_major(x)), reverse=reverse)
    return _time_major(h)


def _backward_loop(a, h, h0, dh, reverse):
    def step(carried, inputs):
        a_t, h_before, dh_t = inputs
        g = dh_t.astype(jnp.float32) + carried
        da = g * h_before.astype(jnp.float32)
        return a_t.astype(jnp.float32) * g, (da.astype(a.dtype), g.astype(dh.dtype))

    before = _previous(h, h0, reverse)
    dh0, (da, dx) = jax.lax.scan(
        step,
        jnp.zeros(h0.shape, jnp.float32),
        (_time_major(a), _time_major(before), _time_major(dh)),
        reverse=not reverse,
    )
    return _time_major(da), _time_major(dx), dh0


def _combine(left, right):
    a_left, x_left = left
    a_right, x_right = right
    return a_left * a_right, a_right * x_left + x_right


def _forward_prefix(a, x, h0, reverse):
    a32, x32 = a.astype(jnp.float32), x.astype(jnp.float32)
    first = -1 if reverse else 0
    x32 = x32.at[:, first].add(a32[:, first] * h0.astype(jnp.float32))
    _, h = jax.lax.associative_scan(_combine, (a32, x32), axis=1, reverse=reverse)
    return h.astype(x.dtype)


def _backward_prefix(a, h, h0, dh, reverse):
    a_after = _previous(a, jnp.zeros_like(h0), not reverse)
    g = _forward_prefix(
        a_after.astype(jnp.float32), dh.astype(jnp.float32), jnp.zeros_like(h0), not reverse
    )
    da = g * _previous(h, h0, reverse).astype(jnp.float32)
    first = -1 if reverse else 0
    dh0 = a[:, first].astype(jnp.float32) * g[:, first]
    return da.astype(a.dtype), g.astype(dh.dtype), dh0
