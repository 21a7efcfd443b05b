"""The arguments of a recurrence with a matrix state per head."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


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

        def pad(array: Array, features: int | None = None) -> Array:
            missing = [(0, 0), (0, -array.shape[1] % chunk)] + [(0, 0)] * (array.ndim - 2)
            if features is not None:
                missing[-1] = (0, features - array.shape[-1])
            return jnp.pad(array, missing)

        return HeadSequences(
            pad(self.q, d_k),
            pad(self.k, d_k),
            pad(self.v, d_v),
            pad(self.g.astype(jnp.float32)),
            None if self.beta is None else pad(self.beta.astype(jnp.float32)),
            None if self.resets is None else tuple(map(pad, self.resets)),
        )


def pad_state(
    state: Float[Array, "batch heads first second"], d_k: int, d_v: int
) -> Float[Array, "batch heads d_k d_v"]:
    """Return the state with zeros for the features of padding."""
    return jnp.pad(state, [(0, 0), (0, 0), (0, d_k - state.shape[2]), (0, d_v - state.shape[3])])
