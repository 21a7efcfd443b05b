"""S4D as one product of each row with a Toeplitz matrix, masked at the resets: for short rows."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from birdie_jax.array_types import TokenMask
from birdie_jax.models.state_space import StateSpace


def toeplitz_product(
    space: StateSpace,
    u: Float[Array, "rows length heads width"],
    reset: TokenMask,
    *,
    reverse: bool,
) -> Float[Array, "rows length heads width"]:
    """Return y_t = sum over s of T[t, s] u_s, in the type of `u`.

    T[t, s] = K[t - s] for s <= t unless there is a reset in (s, t]; in reverse K[s - t] for s >= t unless
    there is one in [t, s). All channels of a head share the matrix, so this takes 2 L FLOPs for each token
    and channel.

    Args:
        space: the system of each head.
        u: the inputs.
        reset: whether no state enters a token from the previous one in the direction of reading.
        reverse: whether to read the sequence from its end.
    """
    matrix = toeplitz(space.kernel_with_input(u.shape[1]), reverse=reverse).astype(u.dtype)
    masked = jnp.where(connected(reset, reverse=reverse)[:, None], matrix, jnp.zeros((), u.dtype))
    if u.shape[2] == 1:
        # With one matrix for all channels, a plain batched product needs no transposition.
        return jnp.einsum("rts,rsc->rtc", masked[:, 0], u[:, :, 0])[:, :, None]
    return jnp.einsum("rhts,rshc->rthc", masked, u)


def toeplitz(kernel: Float[Array, "heads length"], *, reverse: bool) -> Float[Array, "heads length length"]:
    """Return T[t, s] = kernel[t - s] for s <= t, or in reverse kernel[s - t] for s >= t, else 0.

    This only broadcasts and reshapes: rows that are one element shorter than the repeated period each begin
    one element later. A gather, and the scatter of its derivative, are slow on accelerators.
    """
    heads, length = kernel.shape
    zeros = jnp.zeros((heads, length), kernel.dtype)
    if reverse:
        period = jnp.concatenate([kernel, zeros], axis=1)
    else:
        period = jnp.concatenate([kernel[:, :1], zeros, kernel[:, :0:-1]], axis=1)
    repeated = jnp.broadcast_to(period[:, None], (heads, length, 2 * length)).reshape(heads, -1)
    return repeated[:, : length * (2 * length - 1)].reshape(heads, length, -1)[:, :, :length]


def connected(reset: Bool[Array, "*rows length"], *, reverse: bool) -> Bool[Array, "*rows length length"]:
    """Return whether no reset separates two tokens: in (s, t], or in reverse in [t, s)."""
    part = _resets_before(reset) if reverse else jnp.cumsum(reset, axis=-1, dtype=jnp.int32)
    return part[..., :, None] == part[..., None, :]


def _resets_before(reset: Bool[Array, "*rows length"]) -> Int[Array, "*rows length"]:
    return jnp.cumsum(reset, axis=-1, dtype=jnp.int32) - reset
