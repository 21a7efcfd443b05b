"""The recurrence for a single token, for decoding, without chunks."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.matrix_state.decays import token_decay
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
        kept = token_decay(g[:, 0].astype(jnp.float32), resets) * state.astype(jnp.float32)
        o, seen = (jnp.sum(array[..., None] * kept, axis=-2) for array in (q, k))
    if beta is not None:
        u = beta[:, 0, :, None].astype(jnp.float32) * (u - seen)
    o += jnp.sum(q * k, axis=-1, keepdims=True) * u
    return o[:, None].astype(v.dtype), kept + k[..., None] * u[..., None, :]
