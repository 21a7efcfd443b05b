"""Recurrences with a matrix state per head in chunks of matrix products, with a custom derivative.

Within a chunk of C tokens, all work is matrix products; a loop passes the state from chunk to chunk. The
derivative here keeps only the arguments. It runs the loop again for the states that enter the chunks, T / C
matrices per head. Then it goes through the chunks from the last to the first and recomputes each from its
state.

The symbols follow Yang et al. 2024 (Gated Delta Networks, section 3.3) and Dao and Gu 2024 (section 6). For
one head, with the tokens of a chunk as rows:

    G_i = sum_{j <= i} g_j, g counted as zero at resets      n_i = the number of resets up to i
    D_ij = exp(G_i - G_j) if i >= j and n_i = n_j, else 0
    c_i = exp(G_i) if n_i = 0, else 0                        e_j = exp(G_C - G_j) if n_j = n_C, else 0
    A = strictly lower part of diag(beta) (K K^T * D)
    U = (I + A)^-1 diag(beta) (V - diag(c) K S)              (without beta: U = V)
    O = diag(c) Q S + (Q K^T * D) U
    S' = c_C S + K^T diag(e) U

A reset is a mask, never a large negative decay, which would cost all later decays their digits in a float32
cumulative sum. Every exponential is of a difference that is not positive.
"""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pallas_kernels.matrix_state.decays import (
    ChannelDecays,
    ChunkDecays,
    HeadDecays,
    channel_decays,
    head_decays,
    mix,
)
from pallas_kernels.matrix_state.triangular import (
    Inverse,
    solve,
    unit_lower_inverse,
    without_diagonal,
)
from pallas_kernels.rematerialisation import named

State = Float[Array, "rows groups heads d_k d_v"]


class Sequences(NamedTuple):
    """The inputs of a recurrence in reading order, for one head and chunk, or with leading axes for more.

    Attributes:
        q: the queries.
        k: the keys.
        v: the values.
        g: the logarithm of the decay, float32; with an axis of d_k if each channel of the keys has its own.
        beta: the share of the old value that the new one replaces, float32; if None, values are added.
        reset: the tokens that the state before them does not enter; None without resets.
    """

    q: Float[Array, "*axes tokens d_k"]
    k: Float[Array, "*axes tokens d_k"]
    v: Float[Array, "*axes_of_heads tokens d_v"]
    g: Float[Array, "*axes_of_heads_tokens_d_k"]
    beta: Float[Array, "*axes_of_heads tokens"] | None
    reset: Bool[Array, "*axes_of_rows tokens"] | None


def read_head(
    state: Float[Array, "d_k d_v"], chunk: Sequences
) -> tuple[Float[Array, "d_k d_v"], Float[Array, "tokens d_v"]]:
    """Return the state of a head after a chunk, in float32, and the output of its tokens, in v's dtype."""
    if chunk.g.ndim == 2:
        decays = channel_decays(chunk.g, chunk.reset)
    else:
        decays = head_decays(chunk.g[None], None if chunk.reset is None else chunk.reset[None])
    beta = None if chunk.beta is None else chunk.beta[:, None]
    return read_with(decays, state, (chunk.q, chunk.k, chunk.v), beta)


def read_with(
    decays: ChunkDecays,
    state: Float[Array, "d_k d_v"],
    tokens: tuple[Float[Array, "tokens d_k"], Float[Array, "tokens d_k"], Float[Array, "tokens d_v"]],
    beta: Float[Array, "tokens 1"] | None,
    inverse: Inverse = unit_lower_inverse,
    *,
    values: tuple[Array | None, Array | None] = (None, None),
) -> tuple[Float[Array, "d_k d_v"], Float[Array, "tokens d_v"]]:
    """Do the same as `read_head` for given decays.

    Args:
        decays: the decays of the chunk.
        state: the state that enters the chunk.
        tokens: q, k and v.
        beta: the share of the old value that the new one replaces; if None, values are added.
        inverse: the function that computes (I + A)^-1 of a strictly lower triangular A.
        values: factors that broadcast against v: of v in the state, and of v in its own output; or None.
    """
    q, k, v = tokens
    dtype, (scale, skip) = v.dtype, values
    U = v.astype(jnp.float32) if scale is None else scale * v.astype(jnp.float32)
    if beta is not None:
        A = beta * without_diagonal(cast(HeadDecays | ChannelDecays, decays).products(k, k, dtype))
        inverted = jax.lax.stop_gradient(inverse(A))
        U = cast(Array, solve(dtype, inverted, A, beta * (U - decays.read(k, state, dtype))))
    o = decays.read(q, state, dtype) + mix(decays, (q, k), U, dtype)
    if skip is not None:
        o += skip * v.astype(jnp.float32)
    return decays.write(k, U, state, dtype), o.astype(dtype)


def read_chunk(
    state: State, chunk: Sequences
) -> tuple[State, Float[Array, "rows groups heads tokens d_v"]]:
    """Return `read_head` for all heads [rows, groups, heads]; the heads of a group share q and k."""
    read, names = read_head, ()
    for more in (("v", "g", "beta"), ("q", "k"), ("reset",)):
        names += more
        axes = {
            name: 0 if name in names and array is not None else None
            for name, array in chunk._asdict().items()
        }
        read = jax.vmap(read, in_axes=(0, cast(Any, Sequences)(**axes)))
    return read(state, chunk)


@jax.custom_vjp
def read_chunks(
    state: State, chunks: Sequences
) -> tuple[State, Float[Array, "chunks rows groups heads length d_v"]]:
    """Return the state after all chunks, in float32, and the output of their tokens, in v's dtype."""
    return jax.lax.scan(read_chunk, state, chunks)


def _forward(state, chunks):
    return named(read_chunks(state, chunks)), (state, chunks)


def _backward(residuals, cotangents):
    state, chunks = residuals
    dstate, do = cotangents

    def keep_entering(state, chunk):
        return read_chunk(state, chunk)[0], state

    _, entering = jax.lax.scan(keep_entering, state, chunks)

    def pull_chunk(dstate, now):
        entering, chunk, do = now
        reset = chunk.reset
        _, pull_back = jax.vjp(
            lambda state, chunk: read_chunk(state, chunk._replace(reset=reset)),
            entering,
            chunk._replace(reset=None),
        )
        return pull_back((dstate, do))

    return jax.lax.scan(pull_chunk, dstate, (entering, chunks, do), reverse=True)


read_chunks.defvjp(_forward, _backward)
