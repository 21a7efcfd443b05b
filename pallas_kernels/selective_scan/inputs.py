"""The arrays that a selective scan reads."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float

Sequence = Float[Array, "batch length channels"]
Columns = Float[Array, "batch length N"]
State = Float[Array, "batch N channels"]
Resets = tuple[Bool[Array, "batch length"], ...] | None


class SelectiveScanInputs(NamedTuple):
    """The arguments of `selective_scan` in the layout of its implementations.

    Attributes:
        u: the input.
        dt: the step before its bias and softplus; without `dt_bias` the step itself.
        A: the rates, negative, with the channels last.
        B: the input's weight in each of the N states, the same for all channels.
        C: the weight of each state in the output, the same for all channels.
        D: the factor of the input in the output, float32.
        z: what gates the output by its SiLU; None: there is no gate.
        dt_bias: the bias of the step; None: `dt` is the step.
        h0: the state before the first step read, float32.
        resets: for each direction, where nothing enters from the step before; or None.
    """

    u: Sequence
    dt: Sequence
    A: Float[Array, "N channels"]
    B: Columns
    C: Columns
    D: Float[Array, " channels"]
    z: Sequence | None
    dt_bias: Float[Array, " channels"] | None
    h0: State
    resets: Resets
