"""The decays of a chunk of one head, per head or per channel of the keys, with resets."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.matrix_state.triangular import joined, product

Keys = Float[Array, "tokens d_k"]
Values = Float[Array, "tokens d_v"]
State = Float[Array, "d_k d_v"]
Pairs = Float[Array, "tokens tokens"]

# The exponential of anything less is zero in float32. Sums of clipped values stay finite and precise.
LEAST_LOGARITHM = -104.0
# Blocks of this side or less are computed elementwise if the decays are per channel.
ELEMENTWISE = 8


class HeadDecays(NamedTuple):
    """Decays with one number per token; see `chunks` for the symbols.

    Attributes:
        D: the decay from each token to each later token, with ones on the diagonal.
        c: the weight of the entering state.
        e: the weight of a token in the leaving state.
        kept: the weight of the entering state in the leaving state.
    """

    D: Pairs
    c: Float[Array, "tokens 1"]
    e: Float[Array, "tokens 1"]
    kept: Float[Array, "1 1"]

    def products(self, a: Keys, k: Keys, dtype: jnp.dtype) -> Pairs:
        """Return a_i . k_j, decayed from j to i; zero above the diagonal."""
        return product("id,jd->ij", a, k, dtype=dtype) * self.D

    def read(self, a: Keys, state: State, dtype: jnp.dtype) -> Values:
        """Return what `a` reads of the entering state, decayed up to each token."""
        return self.c * product("id,dv->iv", a, state, dtype=dtype)

    def write(self, k: Keys, U: Values, state: State, dtype: jnp.dtype) -> State:
        """Return the leaving state."""
        return self.kept * state + product("jd,jv->dv", k, self.e * U, dtype=dtype)


class HeadsDecays(NamedTuple):
    """Decays of several heads with the same keys, whose values are side by side; as in `HeadDecays`.

    Attributes:
        heads: the decays of each head.
    """

    heads: tuple[HeadDecays, ...]

    def read(self, a: Keys, state: State, dtype: jnp.dtype) -> Values:
        """Return what `a` reads of the entering state, decayed up to each token."""
        c = side_by_side([one.c for one in self.heads], state.shape[1])
        return c * product("id,dv->iv", a, state, dtype=dtype)

    def write(self, k: Keys, U: Values, state: State, dtype: jnp.dtype) -> State:
        """Return the leaving state."""
        e, kept = (
            side_by_side([getattr(one, name) for one in self.heads], U.shape[1]) for name in ("e", "kept")
        )
        return kept * state + product("jd,jv->dv", k, e * U, dtype=dtype)


def side_by_side(arrays: Sequence[Array], width: int) -> Array:
    """Return the array of each head in its features, of `width` in all; an array can have one column."""
    feature, of_head = jax.lax.broadcasted_iota(jnp.int32, (1, width), 1), width // len(arrays)
    found = arrays[0]
    for number, array in enumerate(arrays[1:], 1):
        found = jnp.where(feature < number * of_head, found, array)
    return found


def column_of(row: Float[Array, "1 tokens"]) -> Float[Array, "tokens 1"]:
    """Return a row as a column, only with a mask and a sum, as kernels require."""
    shape = row.shape[1], row.shape[1]
    first, second = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
    return jnp.sum(jnp.where(first == second, row, 0.0), axis=1, keepdims=True)


class ChannelDecays(NamedTuple):
    """Decays with one number per token and channel of the keys; methods as in `HeadDecays`.

    Attributes:
        G: the sum of the logarithms since the last reset.
        same: entry (i, j) is true if token j is not after token i and no reset is between them.
        c: the weight of the entering state.
        e: the weight of a token in the leaving state.
        kept: the weight of the entering state in the leaving state.
    """

    G: Keys
    same: Bool[Array, "tokens tokens"]
    c: Keys
    e: Keys
    kept: Float[Array, "d_k 1"]

    def products(self, a: Keys, k: Keys, dtype: jnp.dtype) -> Pairs:
        """Return sum_d a_id k_jd exp(G_id - G_jd); zero above the diagonal and across resets."""
        a, k, G = (array.astype(jnp.float32)[None] for array in (a, k, self.G))
        return jnp.where(self.same, _channel_products(a, k, G, dtype)[0], 0.0)

    def read(self, a: Keys, state: State, dtype: jnp.dtype) -> Values:
        """Return what `a` reads of the entering state, decayed up to each token."""
        return product("id,dv->iv", a * self.c, state, dtype=dtype)

    def write(self, k: Keys, U: Values, state: State, dtype: jnp.dtype) -> State:
        """Return the leaving state."""
        return self.kept * state + product("jd,jv->dv", k * self.e, U, dtype=dtype)


ChunkDecays = HeadDecays | HeadsDecays | ChannelDecays


def mix(decays: ChunkDecays, keys: tuple[Keys, Keys], U: Values, dtype: jnp.dtype) -> Values:
    """Return what queries read of the values that the chunk writes, decayed up to each token.

    Args:
        decays: the decays of the chunk.
        keys: the queries and the keys.
        U: the values.
        dtype: the operand dtype of the products.
    """
    if not isinstance(decays, HeadsDecays):
        return product("ij,jv->iv", decays.products(*keys, dtype), U, dtype=dtype)
    scores = product("id,jd->ij", *keys, dtype=dtype)
    of_heads = [product("ij,jv->iv", scores * one.D, U, dtype=dtype) for one in decays.heads]
    return side_by_side(of_heads, U.shape[1])


def head_decays(
    g: Float[Array, "1 tokens"], reset: Bool[Array, "1 tokens"] | None, *, reverse: bool = False
) -> HeadDecays:
    """Return the decays of a chunk of a head from the logarithm of each token's decay.

    All arrays have two axes. Rows become columns only with a mask and a sum, as kernels require.

    Args:
        g: the logarithms.
        reset: the tokens that the state before them does not enter; None without resets.
        reverse: whether the chunk is read from its end.
    """
    length = g.shape[1]
    shape = (length, length)
    row, column = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
    same = row <= column if reverse else row >= column
    final = 0 if reverse else length - 1

    def as_row(values: Float[Array, "tokens 1"]) -> Float[Array, "1 tokens"]:
        return jnp.sum(jnp.where(row == column, values, 0.0), axis=0, keepdims=True)

    g = jnp.maximum(g, LEAST_LOGARITHM)
    enters, leaves = None, None
    if reset is not None:
        flags = reset.astype(jnp.float32)
        count = jnp.sum(jnp.where(same, flags, 0.0), axis=1, keepdims=True)
        same &= count == as_row(count)
        g = jnp.where(reset, 0.0, g)
        enters, leaves = count == 0.0, count == count[final : final + 1]
    # Sum only the tokens since the last reset. The derivative of a cumulative sum over all tokens would
    # leave rounding errors at the tokens of other samples.
    G = jnp.sum(jnp.where(same, g, 0.0), axis=1, keepdims=True)
    last = G[final : final + 1]
    c, e, kept = _ends(G, last, enters, leaves, final)
    difference = jnp.where(same, G - as_row(G), 0.0)
    return HeadDecays(jnp.where(same, jnp.exp(difference), 0.0), c, e, kept)


def _ends(G, last, enters, leaves, final):
    """Return c, e and kept of the decays."""
    c, kept = jnp.exp(G), jnp.exp(last)
    if enters is None:
        return c, jnp.exp(last - G), kept
    # The masked differences can be positive, so their exponentials can overflow.
    e = jnp.where(leaves, jnp.exp(jnp.where(leaves, last - G, 0.0)), 0.0)
    return jnp.where(enters, c, 0.0), e, jnp.where(enters[final : final + 1], kept, 0.0)


def channel_decays(g: Keys, reset: Bool[Array, " tokens"] | None) -> ChannelDecays:
    """Return the decays of a chunk from the logarithm for each token and channel; see `head_decays`."""
    length = len(g)
    same = jnp.tril(jnp.ones((length, length), bool))
    counted, enters, leaves = same, None, None
    if reset is not None:
        count: Int[Array, " tokens"] = jnp.cumsum(reset, dtype=jnp.int32)
        same &= count[:, None] == count[None]
        counted = same & ~reset[None]
        enters, leaves = (count == 0)[:, None], (count == count[-1])[:, None]
    g = jnp.maximum(g, LEAST_LOGARITHM)
    G = jnp.einsum("ij,jd->id", counted.astype(jnp.float32), g, precision="highest")
    c, e, kept = _ends(G, G[-1:], enters, leaves, length - 1)
    return ChannelDecays(G, same, c, e, kept.T)


def _channel_products(a, k, G, dtype):
    """Return sum_d a_id k_jd exp(G_id - G_jd) on and below the diagonal; other entries are arbitrary.

    The function cuts the tokens into halves. Decays from the first half to the second are split at the
    first token of the second half, so both factors are at most 1 and form a matrix product. The function
    then cuts each half again.

    Args:
        a: the queries or keys that read, [blocks, tokens, d_k]; one block at first.
        k: the keys, of the same shape.
        G: the sums of the logarithms, of the same shape.
        dtype: the operand dtype of the products.
    """
    length = a.shape[1]
    if length <= ELEMENTWISE:
        decay = _decay(G[:, :, None] - G[:, None])
        return jnp.sum(a[:, :, None] * k[:, None] * decay, axis=-1)
    half = length // 2

    def halves(array):
        return jnp.concatenate([array[:, :half], array[:, half:]])

    first, second = jnp.split(_channel_products(halves(a), halves(k), halves(G), dtype), 2)
    anchor = G[:, half : half + 1]
    later = a[:, half:] * _decay(G[:, half:] - anchor)
    earlier = k[:, :half] * _decay(anchor - G[:, :half])
    return joined(first, product("nid,njd->nij", later, earlier, dtype=dtype), second)


def _decay(logarithm: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the exponential; positive logarithms belong to masked pairs of tokens and count as 0."""
    return jnp.exp(jnp.where(logarithm > 0, 0.0, logarithm))


def token_decay(
    g: Float[Array, "batch heads *channels"], resets: tuple[Bool[Array, "batch one"], ...] | None
) -> Float[Array, "batch heads channels_or_one one"]:
    """Return exp(g), zero at resets, with axes that broadcast against a state."""
    decay = jnp.exp(jnp.maximum(g, LEAST_LOGARITHM))
    if resets is not None:
        of_heads = jnp.concatenate(resets, axis=1).repeat(g.shape[1] // len(resets), axis=1)
        decay = jnp.where(of_heads.reshape(*g.shape[:2], *(1,) * (g.ndim - 2)), 0.0, decay)
    return decay.reshape(*decay.shape[:2], -1, 1)
