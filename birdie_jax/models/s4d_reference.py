"""Two reference implementations of S4D, for tests and timings; no model uses them."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from birdie_jax.array_types import TokenMask
from birdie_jax.models.state_space import StateSpace


def recurrent_product(
    space: StateSpace,
    u: Float[Array, "rows length heads width"],
    reset: TokenMask,
    *,
    reverse: bool,
) -> Float[Array, "rows length heads width"]:
    """Return the result of `toeplitz_product`, computed one token at a time from the equations."""
    a = jnp.exp(space.log_a)[..., None]

    def step(h, inputs):
        u_t, reset_t = inputs
        h = jnp.where(reset_t[:, None, None, None], 0, a * h) + u_t[:, :, None]
        return h, jnp.sum((space.c[..., None] * h).real, axis=2) + space.d[:, None] * u_t

    rows, _, heads, width = u.shape
    start = jnp.zeros((rows, heads, space.c.shape[1], width), space.c.dtype)
    by_time = jnp.moveaxis(u, 1, 0), jnp.moveaxis(reset, 1, 0)
    _, y = jax.lax.scan(step, start, by_time, reverse=reverse)
    return jnp.moveaxis(y, 0, 1)


def fourier_product(
    space: StateSpace, u: Float[Array, "rows length heads width"], *, reverse: bool
) -> Float[Array, "rows length heads width"]:
    """Return the convolution of whole rows with FFTs of twice their length, as published.

    There are no resets: a row is one sample.
    """
    length = u.shape[1]
    inputs = u.astype(space.d.dtype)
    kernel = jnp.fft.rfft(space.kernel_with_input(length), 2 * length, axis=1).T[None, :, :, None]
    # The conjugate is the transform of the reversed kernel.
    kernel = jnp.conj(kernel) if reverse else kernel
    y = jnp.fft.irfft(jnp.fft.rfft(inputs, 2 * length, axis=1) * kernel, 2 * length, axis=1)
    return y[:, :length].astype(u.dtype)
