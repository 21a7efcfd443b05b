"""The bodies of the kernels in `gpu`, for a chunk of one head; symbols as in `chunks`."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pallas_kernels.matrix_state.decays import LEAST_LOGARITHM
from pallas_kernels.matrix_state.triangular import cast_einsum, masked_inverse, without_diagonal


class TokenDecays(NamedTuple):
    """The decays of a chunk, for any direction that the program computes.

    Attributes:
        D: the decay from each token to each later token, with ones on the diagonal.
        c: the weight of the entering state.
        e: the weight of a token in the leaving state.
        kept: the weight of the entering state in the leaving state.
        same: entry (i, j) is true if token j is not after token i and no reset is between them.
        counted: the tokens whose logarithm has a derivative.
        final: true at the last token in reading order.
    """

    D: Any
    c: Any
    e: Any
    kept: Any
    same: Any
    counted: Any
    final: Any


def token_decays(g: Array, reset: Array, reverse: Any) -> TokenDecays:
    """Return the decays of a chunk; `reset` is 1.0 at resets, else 0.0.

    There are no slices, which Triton does not have: a mask and a sum take one token from a row.
    """
    length = g.shape[0]
    row, column = (jax.lax.broadcasted_iota(jnp.int32, (length, length), axis) for axis in (0, 1))
    same = jnp.where(reverse, row <= column, row >= column)
    index = jax.lax.broadcasted_iota(jnp.int32, (length,), 0)
    final = jnp.where(reverse, index == 0, index == length - 1)
    count = jnp.sum(jnp.where(same, reset[None], 0.0), axis=1)
    total = jnp.sum(reset)
    same &= count[:, None] == count[None]
    counted = (reset == 0.0) & (g >= LEAST_LOGARITHM)
    g = jnp.where(reset == 0.0, jnp.maximum(g, LEAST_LOGARITHM), 0.0)
    G = jnp.sum(jnp.where(same, g[None], 0.0), axis=1)
    last = jnp.sum(jnp.where(final, G, 0.0))
    leaves = count == total
    return TokenDecays(
        D=jnp.where(same, jnp.exp(jnp.where(same, G[:, None] - G[None], 0.0)), 0.0),
        c=jnp.where(count == 0.0, jnp.exp(G), 0.0),
        e=jnp.where(leaves, jnp.exp(jnp.where(leaves, last - G, 0.0)), 0.0),
        kept=jnp.where(total == 0.0, jnp.exp(last), 0.0),
        same=same,
        counted=counted,
        final=final,
    )


def key_products(keys, with_beta, dtype):
    """Return Q K^T, and K K^T or None, which heads with the same keys share."""
    dot = partial(cast_einsum, dtype=dtype)
    q, k = keys
    return dot("ij,kj->ik", q, k), dot("ij,kj->ik", k, k) if with_beta else None


def prepare(products, beta, decays, dtype):
    """Return the parts of a chunk that do not depend on the state: Q K^T * D, and (I + A)^-1 or None."""
    scores, overlaps = products
    if beta is None:
        return scores * decays.D, None
    A = without_diagonal(beta[:, None] * overlaps * decays.D)
    return scores * decays.D, masked_inverse(A, upper=None, exact=dtype == jnp.float32)


def read(state, tokens, matrices, weights, dtype):
    """Return the state after a chunk, its output and U, for some columns of the state.

    Args:
        state: the state that enters the chunk, float32.
        tokens: q, k, and the same columns of v.
        matrices: the result of `prepare`.
        weights: beta or None, c, e and kept.
        dtype: the type of the operands of products.
    """
    dot = partial(cast_einsum, dtype=dtype)
    (q, k, v), (within, inverse), (beta, c, e, kept) = tokens, matrices, weights
    U = v.astype(jnp.float32)
    if beta is not None:
        seen = c[:, None] * dot("ij,jk->ik", k, state)
        U = dot("ij,jk->ik", inverse, beta[:, None] * (U - seen))
    o = c[:, None] * dot("ij,jk->ik", q, state) + dot("ij,jk->ik", within, U)
    return kept * state + dot("ji,jk->ik", k, e[:, None] * U), o, U


def pull(dstate, tokens, matrices, weights, dtype):
    """Return the cotangents of the state before a chunk and of beta (V - c K S), for some columns.

    Args:
        dstate: the cotangent of the state after the chunk, float32.
        tokens: q, k, and the same columns of the cotangent of the output.
        matrices: the result of `prepare`.
        weights: beta or None, c, e and kept.
        dtype: the type of the operands of products.
    """
    dot = partial(cast_einsum, dtype=dtype)
    (q, k, do), (within, inverse), (beta, c, e, kept) = tokens, matrices, weights
    dU = dot("ji,jk->ik", within, do) + e[:, None] * dot("ij,jk->ik", k, dstate)
    before = kept * dstate + dot("ji,jk->ik", q, c[:, None] * do.astype(jnp.float32))
    if beta is None:
        return before, dU
    dR = dot("ji,jk->ik", inverse, dU)
    return before - dot("ji,jk->ik", k, (c * beta)[:, None] * dR), dR


class ColumnSums(NamedTuple):
    """Sums over the columns of the state, from which the cotangents of a chunk follow.

    Attributes:
        dq: the part of the cotangent of q by way of the state.
        dk: the part of the cotangent of k by way of the state.
        dwithin: the cotangent of Q K^T * D.
        dtriangle: the cotangent of A; None without beta.
        dc: the cotangent of c.
        de: the cotangent of e.
        dkept: the cotangent of kept.
        of_values: the part of the cotangent of beta by way of V.
        of_states: the part of the cotangent of beta by way of K S; None without beta.
    """

    dq: Any
    dk: Any
    dwithin: Any
    dtriangle: Any
    dc: Any
    de: Any
    dkept: Any
    of_values: Any
    of_states: Any


def column_sums(keys, columns, states, weights, dtype):
    """Return the sums for some columns, and some features of the keys.

    Args:
        keys: q and k.
        columns: v, U, the cotangent of the output and that of beta (V - c K S).
        states: the state that enters the chunk, and the cotangent of the state that leaves it.
        weights: beta or None, c, e and kept.
        dtype: the type of the operands of products.
    """
    dot = partial(cast_einsum, dtype=dtype)
    (v, U, do, dR), (state, dstate), (beta, c, e, _) = columns, states, weights
    q, k = (array.astype(jnp.float32) for array in keys)
    of_q = dot("ij,kj->ik", do, state)
    of_k = dot("ij,kj->ik", U, dstate)
    dq, dk = c[:, None] * of_q, e[:, None] * of_k
    dc, de = jnp.sum(of_q * q, axis=1), jnp.sum(of_k * k, axis=1)
    dtriangle, of_states, of_values = None, None, jnp.zeros_like(dc)
    if beta is not None:
        of_R = dot("ij,kj->ik", dR, state)
        seen = jnp.sum(of_R * k, axis=1)
        dk -= (c * beta)[:, None] * of_R
        dc -= beta * seen
        of_values, of_states = jnp.sum(dR.astype(jnp.float32) * v.astype(jnp.float32), axis=1), -c * seen
        dtriangle = -dot("ij,kj->ik", dR, U)
    dkept = jnp.sum(dstate.astype(jnp.float32) * state.astype(jnp.float32))
    dwithin = dot("ij,kj->ik", do, U)
    return ColumnSums(dq, dk, dwithin, dtriangle, dc, de, dkept, of_values, of_states)


def head_gradients(sums, products, beta, decays):
    """Return the cotangents of Q K^T, of K K^T (None without beta), of g and of beta, from all columns.

    With products of some features of the keys, those of g and beta are the parts by way of these features.
    """
    scores, overlaps = products
    dscores, doverlaps, dbeta = sums.dwithin * decays.D, None, None
    dD = dscores * scores
    if beta is not None:
        doverlaps = without_diagonal(sums.dtriangle) * decays.D
        of_beta = doverlaps * overlaps
        dbeta = sums.of_values + sums.of_states + jnp.sum(of_beta, axis=1)
        dD += beta[:, None] * of_beta
        doverlaps *= beta[:, None]
    de = sums.de * decays.e
    dG = jnp.sum(dD, axis=1) - jnp.sum(dD, axis=0) + sums.dc * decays.c - de
    dlast = jnp.sum(de) + sums.dkept * decays.kept
    dG += jnp.where(decays.final, dlast, 0.0)
    dg = jnp.sum(jnp.where(decays.same, dG[:, None], 0.0), axis=0)
    return dscores, doverlaps, jnp.where(decays.counted, dg, 0.0), dbeta


class KeySums(NamedTuple):
    """Sums over the heads that share a head of keys, from which its cotangents follow.

    Attributes:
        dq: the part of the cotangent of q by way of the states.
        dk: the part of the cotangent of k by way of the states.
        dscores: the cotangent of Q K^T.
        doverlaps: the cotangent of K K^T; None without beta.
    """

    dq: Any
    dk: Any
    dscores: Any
    doverlaps: Any


def key_gradients(sums, keys, dtype):
    """Return the cotangents of q and k from the sums over all heads that share them."""
    dot = partial(cast_einsum, dtype=dtype)
    q, k = keys
    dq = sums.dq + dot("ij,jk->ik", sums.dscores, k)
    dk = sums.dk + dot("ji,jk->ik", sums.dscores, q)
    if sums.doverlaps is not None:
        dk += dot("ij,jk->ik", sums.doverlaps, k) + dot("ji,jk->ik", sums.doverlaps, k)
    return dq, dk
