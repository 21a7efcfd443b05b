"""The decays of a chunk, of a head or of each channel of its keys, with resets."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.matrix_state.triangular import joined, product

Keys = Float[Array, "rows groups length d_k"]
Values = Float[Array, "rows groups heads length d_v"]
State = Float[Array, "rows groups heads d_k d_v"]

# In float32 the exponential of less is zero; sums of such numbers stay finite and keep their digits.
LEAST_LOGARITHM = -104.0
# A block of this side, whose decays differ by channel, is computed element by element.
ELEMENTWISE = 8


class HeadDecays(NamedTuple):
    """Decays of one number a head and token; see `chunks` for the symbols.

    Attributes:
        D: the decay from each token to each later one, with ones on the diagonal.
        c: the weight of the entering state.
        e: the weight of a token in the leaving state.
        kept: the weight of the entering state in the leaving one.
    """

    D: Float[Array, "rows groups heads length length"]
    c: Float[Array, "rows groups heads length"]
    e: Float[Array, "rows groups heads length"]
    kept: Float[Array, "rows groups heads"]

    def products(
        self, a: Keys, k: Keys, dtype: jnp.dtype
    ) -> Float[Array, "rows groups heads length length"]:
        """Return a_i . k_j, decayed from j to i, zero above the diagonal."""
        return product("...id,...jd->...ij", a, k, dtype=dtype)[:, :, None] * self.D

    def read(self, a: Keys, state: State, dtype: jnp.dtype) -> Values:
        """Return what `a` reads of the entering state, decayed up to each token."""
        return self.c[..., None] * product("ngid,nghdv->nghiv", a, state, dtype=dtype)

    def write(self, k: Keys, U: Values, state: State, dtype: jnp.dtype) -> State:
        """Return the leaving state."""
        written = product("ngjd,nghjv->nghdv", k, self.e[..., None] * U, dtype=dtype)
        return self.kept[..., None, None] * state + written


class ChannelDecays(NamedTuple):
    """Decays of a number for each channel of the keys; attributes and methods as in `HeadDecays`.

    Attributes:
        G: the cumulative sum of the logarithms.
        same: whether a token is no later than another, and no reset lies between them.
        c: the weight of the entering state.
        e: the weight of a token in the leaving state.
        kept: the weight of the entering state in the leaving one.
    """

    G: Float[Array, "rows groups heads length d_k"]
    same: Bool[Array, "rows 1 1 length length"]
    c: Float[Array, "rows groups heads length d_k"]
    e: Float[Array, "rows groups heads length d_k"]
    kept: Float[Array, "rows groups heads d_k"]

    def products(
        self, a: Keys, k: Keys, dtype: jnp.dtype
    ) -> Float[Array, "rows groups heads length length"]:
        """Return sum_d a_id k_jd exp(G_id - G_jd), zero above the diagonal and across resets."""
        shape = self.G.shape
        a, k = (jnp.broadcast_to(array[:, :, None], shape).astype(jnp.float32) for array in (a, k))
        a, k, G = (array.reshape(-1, *shape[3:]) for array in (a, k, self.G))
        found = _channel_products(a, k, G, dtype)
        return jnp.where(self.same, found.reshape(*shape[:4], shape[3]), 0.0)

    def read(self, a: Keys, state: State, dtype: jnp.dtype) -> Values:
        """Return what `a` reads of the entering state, decayed up to each token."""
        return product("nghid,nghdv->nghiv", a[:, :, None] * self.c, state, dtype=dtype)

    def write(self, k: Keys, U: Values, state: State, dtype: jnp.dtype) -> State:
        """Return the leaving state."""
        written = product("nghjd,nghjv->nghdv", k[:, :, None] * self.e, U, dtype=dtype)
        return self.kept[..., None] * state + written


ChunkDecays = HeadDecays | ChannelDecays


def chunk_decays(
    g: Float[Array, "rows groups heads length *channels"], reset: Bool[Array, "rows length"] | None
) -> ChunkDecays:
    """Return the decays of a chunk by the logarithm of each token's."""
    by_channel = g.ndim == 5
    length = g.shape[3]
    same = jnp.tril(jnp.ones((1, length, length), bool))
    counted, enters, leaves = same, None, None
    if reset is not None:
        count: Int[Array, "rows length"] = jnp.cumsum(reset, axis=1, dtype=jnp.int32)
        same &= count[:, :, None] == count[:, None, :]
        counted = same & ~reset[:, None, :]
        enters, leaves = count == 0, count == count[:, -1:]
    # A sum over the tokens since the last reset alone: in the derivative of a cumulative sum over all of
    # them, tokens of other samples would have what rounding leaves of zero.
    equation = "nij,nghjd->nghid" if by_channel else "nij,nghj->nghi"
    counted = jnp.broadcast_to(counted, (g.shape[0], length, length)).astype(jnp.float32)
    G = jnp.einsum(equation, counted, jnp.maximum(g, LEAST_LOGARITHM), precision="highest")
    last = G[:, :, :, -1:]
    c, e, kept = jnp.exp(G), jnp.exp(last - G), jnp.exp(last)
    if enters is not None and leaves is not None:
        shape = (enters.shape[0], 1, 1, length) + (1,) * by_channel
        enters, leaves = enters.reshape(shape), leaves.reshape(shape)
        # What is left out may be the exponential of a positive number.
        e = jnp.exp(jnp.where(leaves, last - G, 0.0))
        c, e = jnp.where(enters, c, 0.0), jnp.where(leaves, e, 0.0)
        kept = jnp.where(enters[:, :, :, -1:], kept, 0.0)
    kept = kept[:, :, :, 0]
    same = same[:, None, None]
    if by_channel:
        return ChannelDecays(G, same, c, e, kept)
    difference = jnp.where(same, G[..., :, None] - G[..., None, :], 0.0)
    return HeadDecays(jnp.where(same, jnp.exp(difference), 0.0), c, e, kept)


def _channel_products(a, k, G, dtype):
    """Return sum_d a_id k_jd exp(G_id - G_jd) on and below the diagonal, all else without meaning.

    Of two halves, decays from the first to the second are split at the first token of the second, so that
    neither factor is more than 1: they are a product of matrices. The halves themselves are cut again.
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
    """Return the exponential; what is positive is that of no pair of tokens of a sample, and left out."""
    return jnp.exp(jnp.where(logarithm > 0, 0.0, logarithm))
