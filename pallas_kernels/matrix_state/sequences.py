"""The arguments of a recurrence of a matrix a head."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float


class HeadSequences(NamedTuple):
    """The arguments of a recurrence, with the axes of the public operations.

    Attributes:
        q: what reads the state; heads of v share its heads evenly.
        k: the keys.
        v: the values.
        g: the logarithm of the decay.
        beta: the share of an old value that a new one replaces; None: values are added.
        resets: for the direction, or for each of both, where nothing enters from the token before.
    """

    q: Float[Array, "batch length groups d_k"]
    k: Float[Array, "batch length groups d_k"]
    v: Float[Array, "batch length heads d_v"]
    g: Float[Array, "batch length heads *channels"]
    beta: Float[Array, "batch length heads"] | None
    resets: tuple[Bool[Array, "batch length"], ...] | None
