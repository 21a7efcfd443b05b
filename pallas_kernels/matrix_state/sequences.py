"""The arguments of a recurrence with a matrix state per head."""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped


class HeadSequences(NamedTuple):
    """The arguments of a recurrence, with the axes of the public operations.

    Attributes:
        q: the queries; each group serves an equal number of heads of v.
        k: the keys.
        v: the values.
        g: the logarithm of the decay.
        beta: the share of the old value that the new one replaces; if None, values are added.
        resets: for each direction, the tokens that the state before them does not enter; or None.
    """

    q: Float[Array, "batch length groups d_k"]
    k: Float[Array, "batch length groups d_k"]
    v: Float[Array, "batch length heads d_v"]
    g: Float[Array, "batch length heads *channels"]
    beta: Float[Array, "batch length heads"] | None
    resets: tuple[Bool[Array, "batch length"], ...] | None

    def padded(self, chunk: int, d_k: int, d_v: int) -> "HeadSequences":
        """Return the arguments with whole chunks of tokens and these features, g and beta in float32.

        Tokens of padding leave the state unchanged, and features of padding are zero.
        """
        pad = partial(pad_tokens, chunk=chunk)

        return HeadSequences(
            pad(self.q, features=d_k),
            pad(self.k, features=d_k),
            pad(self.v, features=d_v),
            pad(self.g.astype(jnp.float32)),
            None if self.beta is None else pad(self.beta.astype(jnp.float32)),
            None if self.resets is None else tuple(map(pad, self.resets)),
        )


def pad_tokens(
    array: Shaped[Array, "batch length *features"], chunk: int, features: int | None = None
) -> Shaped[Array, "batch whole_length *features_or_more"]:
    """Return the array with zeros up to whole chunks of tokens, and up to this number of features."""
    missing = [(0, 0), (0, -array.shape[1] % chunk)] + [(0, 0)] * (array.ndim - 2)
    if features is not None:
        missing[-1] = (0, features - array.shape[-1])
    return jnp.pad(array, missing)


class ValueWeights(NamedTuple):
    """The weights of values, which kernels apply on the chip.

    Attributes:
        scale: the factor of each token's value in the state, float32.
        skip: the factor of each token's value in its own output, float32; None to omit the term.
    """

    scale: Float[Array, "batch length heads"]
    skip: Float[Array, " heads"] | None

    def scaled(self, sequences: HeadSequences) -> HeadSequences:
        """Return the arguments with scaled values."""
        v = self.scale[..., None] * sequences.v.astype(jnp.float32)
        return sequences._replace(v=v.astype(sequences.v.dtype))

    def skipped(
        self, o: Float[Array, "batch length heads d_v"], v: Float[Array, "batch length heads d_v"]
    ) -> Float[Array, "batch length heads d_v"]:
        """Return the outputs with the skipped values."""
        if self.skip is None:
            return o
        return (o + self.skip[:, None] * v.astype(jnp.float32)).astype(v.dtype)


def pad_state(
    state: Float[Array, "batch heads first second"], d_k: int, d_v: int
) -> Float[Array, "batch heads d_k d_v"]:
    """Return the state with zeros for the features of padding."""
    return jnp.pad(state, [(0, 0), (0, 0), (0, d_k - state.shape[2]), (0, d_v - state.shape[3])])
