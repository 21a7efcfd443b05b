"""S4D in chunks that pass on the state, for long rows: the cost is linear in the length."""

from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Complex, Float

from birdie_jax.array_types import TokenMask
from birdie_jax.models.s4d_toeplitz import connected, toeplitz
from birdie_jax.models.state_space import StateSpace


def chunked_product(
    space: StateSpace,
    u: Float[Array, "rows length heads width"],
    reset: TokenMask,
    *,
    reverse: bool,
    chunk: int,
) -> Float[Array, "rows length heads width"]:
    """Return the result of `toeplitz_product` with 2 c + 8 N FLOPs for each token and channel.

    Within a chunk of c tokens, this is a product with a Toeplitz matrix. Chunks pass on the state of the N
    modes: the state that leaves a chunk is A'^c times the state that enters it, or zero if there is a
    reset, plus the contribution of its tokens. Only this part is sequential over chunks; it is float32.

    Args:
        space: the system of each head.
        u: the inputs.
        reset: whether no state enters a token from the previous one in the direction of reading.
        reverse: whether to read the sequence from its end.
        chunk: the number of tokens of a chunk; rows are padded to a multiple of it.
    """
    rows, length, heads, width = u.shape
    chunk = min(chunk, length)
    fill = -length % chunk
    chunks = (length + fill) // chunk
    exact = space.d.dtype
    filled = jnp.pad(u, ((0, 0), (0, fill), (0, 0), (0, 0))).reshape(rows, chunks, chunk, heads, width)
    resets = jnp.pad(reset, ((0, 0), (0, fill)), constant_values=True).reshape(rows, chunks, chunk)

    matrix = toeplitz(space.kernel_with_input(chunk), reverse=reverse).astype(u.dtype)
    masked = jnp.where(connected(resets, reverse=reverse)[:, :, None], matrix, jnp.zeros((), u.dtype))
    within = jnp.einsum("rnhts,rnshc->rnthc", masked, filled, preferred_element_type=exact)

    from_entry, to_exit = _open_ends(resets, reverse=reverse)
    index = jnp.arange(chunk, dtype=exact)
    since_entry, until_exit = (chunk - index, index) if reverse else (index + 1, chunk - 1 - index)
    added = jnp.einsum(
        "hmt,rnthc->nrhmc",
        _parts(space.powers(until_exit), axis=1).astype(u.dtype),
        filled * to_exit[..., None, None].astype(u.dtype),
        preferred_element_type=exact,
    )
    passes = jnp.moveaxis(jnp.all(~resets, axis=-1), 1, 0)
    power = _parts(space.powers(jnp.full(1, chunk, exact)), axis=1)
    entering = cast(Array, _carried(added, passes, power, reverse))
    # Re(C' h) = Re C' Re h - Im C' Im h.
    readout = _parts(jnp.conj(space.c[..., None] * space.powers(since_entry)), axis=1)
    between = jnp.einsum(
        "hmt,nrhmc->rnthc",
        readout.astype(u.dtype),
        entering.astype(u.dtype),
        preferred_element_type=exact,
    )
    y = within + jnp.where(from_entry[..., None, None], between, 0)
    return y.reshape(rows, -1, heads, width)[:, :length].astype(u.dtype)


def _open_ends(
    resets: Bool[Array, "rows chunks chunk"], *, reverse: bool
) -> tuple[Bool[Array, "rows chunks chunk"], Bool[Array, "rows chunks chunk"]]:
    """Return the tokens that the state entering their chunk reaches, and the tokens that reach its exit.

    In reverse, a chunk's entry is its right end.
    """
    if reverse:
        resets = jnp.flip(resets, -1)
    before = jnp.cumsum(resets, axis=-1, dtype=jnp.int32)
    ends = before == 0, before == before[..., -1:]
    return (jnp.flip(ends[0], -1), jnp.flip(ends[1], -1)) if reverse else ends


@partial(jax.custom_vjp, nondiff_argnames=("reverse",))
def _carried(
    added: Float[Array, "chunks rows heads parts width"],
    passes: Bool[Array, "chunks rows"],
    power: Float[Array, "heads parts 1"],
    reverse: bool,
) -> Float[Array, "chunks rows heads parts width"]:
    """Return the state that enters each chunk.

    Its derivative is the same loop from the other end, with the conjugate power. The derivative of the
    power is summed outside of the loop, because each step over the chunks of one long row is small.

    Args:
        added: the contribution of each chunk's tokens to the state at its exit, real parts before imaginary
            parts.
        passes: whether a chunk has no reset, so the state passes through it.
        power: A'^c for chunks of c tokens, real parts before imaginary parts.
        reverse: whether to start with the last chunk.
    """
    real, imaginary = jnp.split(power, 2, axis=-2)
    # Re(a h) = Re a Re h - Im a Im h, Im(a h) = Re a Im h + Im a Re h, as factors `own` and `other`.
    own = jnp.concatenate([real, real], axis=-2)
    other = jnp.concatenate([-imaginary, imaginary], axis=-2)

    def pass_chunk(entering, chunk):
        leaving, passing = chunk
        swapped = jnp.roll(entering, entering.shape[-2] // 2, axis=-2)
        turned = own * entering + other * swapped
        return leaving + jnp.where(passing[:, None, None, None], turned, 0), entering

    return jax.lax.scan(pass_chunk, jnp.zeros_like(added[0]), (added, passes), reverse=reverse)[1]


def _carried_forward(added: Array, passes: Array, power: Array, reverse: bool) -> tuple[Array, tuple]:
    entering = cast(Array, _carried(added, passes, power, reverse))
    return entering, (entering, passes, power)


def _carried_backward(reverse: bool, residuals: tuple, g: Array) -> tuple[Array, None, Array]:
    entering, passes, power = residuals
    real, imaginary = jnp.split(power, 2, axis=-2)
    conjugate = jnp.concatenate([real, -imaginary], axis=-2)
    # The cotangent of the state that leaves a chunk, and so of its tokens' contribution.
    leaving = cast(Array, _carried(g, passes, conjugate, not reverse))
    passed = jnp.where(passes[..., None, None, None], leaving, 0)
    (h_real, h_imaginary), (g_real, g_imaginary) = (jnp.split(x, 2, axis=-2) for x in (entering, passed))
    parts = h_real * g_real + h_imaginary * g_imaginary, h_real * g_imaginary - h_imaginary * g_real
    total = [jnp.sum(part, axis=(0, 1, 4))[..., None] for part in parts]
    return leaving, None, jnp.concatenate(total, axis=-2)


_carried.defvjp(_carried_forward, _carried_backward)


def _parts(values: Complex[Array, "..."], axis: int) -> Float[Array, "..."]:
    """Return real parts before imaginary parts along an axis."""
    return jnp.concatenate([values.real, values.imag], axis=axis)
