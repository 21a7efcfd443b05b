"""linear_scan in plain XLA: a loop over time on CPU, a parallel prefix on other platforms.

On CPU, the loop reads and writes the [batch, length, channels] arrays in place, one time step at a time.
`python -m benchmarks.scan` compares it with an elementwise product of the same arrays. A `lax.scan` over
time moves the time axis to the front and back, which costs more than the recurrence. On accelerators, a
loop of thousands of tiny steps leaves the device idle, and the parallel prefix (Blelloch 1990) is faster
although it moves more bytes. Lowering makes the choice, so a program compiled ahead of time gets the
implementation for its target platform.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

UNROLLED = 2

Sequence = Float[Array, "batch length channels"]
State = Float[Array, "batch channels"]
Resets = tuple[Bool[Array, "batch length"], ...] | None


def forward(a: Sequence, x: Sequence, h0: State, *, resets: Resets, direction: str) -> Sequence:
    """Return h of shape [batch, length, channels] in the dtype of `x`; the carry is float32.

    Args:
        a: the decays.
        x: the addends.
        h0: the state before the first step in reading order.
        resets: for each direction, the steps where the decay counts as zero; or None.
        direction: "forward", "reverse", or "both" (the second half of the channels in reverse).
    """
    parts = _parts(a.shape[-1], resets, direction)
    return jax.lax.platform_dependent(
        a,
        x,
        h0,
        cpu=lambda *arrays: _forward_loop(parts, *arrays),
        default=lambda *arrays: _forward_prefix(parts, *arrays),
    )


def backward(
    a: Sequence, h: Sequence, h0: State, dh: Sequence, *, resets: Resets, direction: str
) -> tuple[Sequence, Sequence, State]:
    """Return (da, dx, dh0) for the cotangent `dh` of h; dx has the dtype of h."""
    parts = _parts(a.shape[-1], resets, direction)
    return jax.lax.platform_dependent(
        a,
        h,
        h0,
        dh,
        cpu=lambda *arrays: _backward_loop(parts, *arrays),
        default=lambda *arrays: _backward_prefix(parts, *arrays),
    )


class _Part(NamedTuple):
    """Channels that are read in one direction.

    Attributes:
        channels: the slice of the channels.
        reset: the steps where the decay counts as zero; None without resets.
        reverse: whether the sequence is read from its end.
    """

    channels: slice
    reset: Bool[Array, "batch length"] | None
    reverse: bool


def _parts(channels: int, resets: Resets, direction: str) -> list[_Part]:
    given = (None, None) if resets is None else resets
    if direction != "both":
        return [_Part(slice(0, channels), given[0], direction == "reverse")]
    half = channels // 2
    return [_Part(slice(0, half), given[0], False), _Part(slice(half, channels), given[1], True)]


def _step_of(values: Sequence, t: Array | int, part: _Part) -> Float[Array, "batch 1 part"]:
    """Return [batch, 1, channels of the part] at time t in float32."""
    width = part.channels.stop - part.channels.start
    start, size = (0, t, part.channels.start), (values.shape[0], 1, width)
    return jax.lax.dynamic_slice(values, start, size).astype(jnp.float32)


def _put_step(values: Sequence, new: Float[Array, "batch 1 part"], t: Array | int, part: _Part) -> Sequence:
    return jax.lax.dynamic_update_slice(values, new.astype(values.dtype), (0, t, part.channels.start))


def _zero_at_reset(
    values: Float[Array, "batch 1 part"], part: _Part, t: Array | int
) -> Float[Array, "batch 1 part"]:
    if part.reset is None:
        return values
    return jnp.where(jax.lax.dynamic_slice_in_dim(part.reset, t, 1, axis=1)[..., None], 0.0, values)


def _forward_loop(parts: list[_Part], a: Sequence, x: Sequence, h0: State) -> Sequence:
    length = a.shape[1]
    h = jnp.zeros_like(x)
    # One loop per direction: both directions in the body of one loop take up to 1.5 times as long.
    for part in parts:

        def step(count, carried, part=part):
            state, h = carried
            t = length - 1 - count if part.reverse else count
            state = _zero_at_reset(_step_of(a, t, part), part, t) * state + _step_of(x, t, part)
            return state, _put_step(h, state, t, part)

        state = h0[:, None, part.channels].astype(jnp.float32)
        _, h = jax.lax.fori_loop(0, length, step, (state, h), unroll=_unrolled(length))
    return h


def _backward_loop(
    parts: list[_Part], a: Sequence, h: Sequence, h0: State, dh: Sequence
) -> tuple[Sequence, Sequence, State]:
    length = a.shape[1]
    da, dx, states = jnp.zeros_like(a), jnp.zeros_like(h), []
    for part in parts:

        def step(count, carried, part=part):
            state, da, dx = carried
            t = count if part.reverse else length - 1 - count
            gradient = _step_of(dh, t, part) + state
            # At the first step this reads h[0] instead of h0; the code after the loop corrects it.
            previous = jnp.clip(t + 1 if part.reverse else t - 1, 0, length - 1)
            da = _put_step(da, _zero_at_reset(gradient * _step_of(h, previous, part), part, t), t, part)
            dx = _put_step(dx, gradient, t, part)
            return _zero_at_reset(_step_of(a, t, part), part, t) * gradient, da, dx

        state = jnp.zeros((h0.shape[0], 1, part.channels.stop - part.channels.start), jnp.float32)
        state, da, dx = jax.lax.fori_loop(0, length, step, (state, da, dx), unroll=_unrolled(length))
        states.append(state)
    for part in parts:
        t = length - 1 if part.reverse else 0
        first = _step_of(dx, t, part) * h0[:, None, part.channels]
        da = _put_step(da, _zero_at_reset(first, part, t), t, part)
    return da, dx, jnp.concatenate(states, axis=-1)[:, 0]


def _unrolled(length: int) -> int:
    return min(UNROLLED, length)


def _forward_prefix(parts: list[_Part], a: Sequence, x: Sequence, h0: State) -> Sequence:
    results = []
    for part in parts:
        a_part, x_part = (values[..., part.channels].astype(jnp.float32) for values in (a, x))
        results.append(_prefix(_zero_at_resets(a_part, part), x_part, h0[:, part.channels], part.reverse))
    return jnp.concatenate(results, axis=-1).astype(x.dtype)


def _backward_prefix(
    parts: list[_Part], a: Sequence, h: Sequence, h0: State, dh: Sequence
) -> tuple[Sequence, Sequence, State]:
    results = []
    for part in parts:
        a_part, h_part, dh_part = (values[..., part.channels].astype(jnp.float32) for values in (a, h, dh))
        a_part = _zero_at_resets(a_part, part)
        state = h0[:, part.channels].astype(jnp.float32)
        zero = jnp.zeros_like(state)
        dx = _prefix(_previous(a_part, zero, not part.reverse), dh_part, zero, not part.reverse)
        da = _zero_at_resets(dx * _previous(h_part, state, part.reverse), part)
        first = -1 if part.reverse else 0
        results.append((da, dx, a_part[:, first] * dx[:, first]))
    da, dx, dh0 = (jnp.concatenate(values, axis=-1) for values in zip(*results, strict=True))
    return da.astype(a.dtype), dx.astype(h.dtype), dh0


def _zero_at_resets(values: Sequence, part: _Part) -> Sequence:
    return values if part.reset is None else jnp.where(part.reset[..., None], 0.0, values)


def _prefix(a: Sequence, x: Sequence, h0: State, reverse: bool) -> Sequence:
    """Return h in float32, with a parallel prefix over (a, x) pairs."""
    first = -1 if reverse else 0
    x = x.at[:, first].add(a[:, first] * h0.astype(jnp.float32))
    _, h = jax.lax.associative_scan(_combine, (a, x), axis=1, reverse=reverse)
    return h


def _previous(y: Sequence, first: State, reverse: bool) -> Sequence:
    """Return y[t-1] at each t in reading order, and `first` at the first step."""
    first = first[:, None].astype(y.dtype)
    if reverse:
        return jnp.concatenate([y[:, 1:], first], axis=1)
    return jnp.concatenate([first, y[:, :-1]], axis=1)


def _combine(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
    a_left, x_left = left
    a_right, x_right = right
    return a_left * a_right, a_right * x_left + x_right
