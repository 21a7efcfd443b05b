"""The recurrence for a single token, for decoding, without chunks."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pallas_kernels.matrix_state.decays import LEAST_LOGARITHM
from pallas_kernels.matrix_state.sequences import HeadSequences

State = Float[Array, "batch heads d_k d_v"]


def read_token(
    sequences: HeadSequences, state: State | None
) -> tuple[Float[Array, "batch one heads d_v"], State]:
    """Return the output of the token, in v's dtype, and the float32 state after it.

        S~ = exp(g) S      u = beta (v - S~^T k)      S' = S~ + k u^T      o = S~^T q + (q . k) u

    Args:
        sequences: the arguments, with one token per row.
        state: the state before the token; zero if None.
    """
    q, k, v, g, beta, resets = sequences
    heads = v.shape[2]
    q, k = (array[:, 0].astype(jnp.float32).repeat(heads // array.shape[2], axis=1) for array in (q, k))
    u = v[:, 0].astype(jnp.float32)
    o, seen, kept = 0.0, 0.0, 0.0
    if state is not None:
        kept = _decay(g[:, 0].astype(jnp.float32), resets) * state.astype(jnp.float32)
        o, seen = (jnp.sum(array[..., None] * kept, axis=-2) for array in (q, k))
    if beta is not None:
        u = beta[:, 0, :, None].astype(jnp.float32) * (u - seen)
    o += jnp.sum(q * k, axis=-1, keepdims=True) * u
    return o[:, None].astype(v.dtype), kept + k[..., None] * u[..., None, :]


def _decay(
    g: Float[Array, "batch heads *channels"], resets: tuple[Bool[Array, "batch one"], ...] | None
) -> Float[Array, "batch heads channels_or_one one"]:
    """Return exp(g), zero at resets, with axes that broadcast against a state."""
    decay = jnp.exp(jnp.maximum(g, LEAST_LOGARITHM))
    if resets is not None:
        of_heads = jnp.concatenate(resets, axis=1).repeat(g.shape[1] // len(resets), axis=1)
        decay = jnp.where(of_heads.reshape(*g.shape[:2], *(1,) * (g.ndim - 2)), 0.0, decay)
    return decay.reshape(*decay.shape[:2], -1, 1)
