"""The arguments of a recurrence with a matrix state per head."""

from typing import NamedTuple

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
