"""What surrounds a recurrence, element by element: from projections to its inputs, and the output gate.

A cell is the part of a recurrent layer between its projections. Its functions see any block of
[time, channels] in float32, the whole sequence or a tile of it in a kernel, and treat each element
independently. `elementwise` has functions to make one of.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax

RecurrenceInputs = Callable[
    [tuple[jax.Array, ...], tuple[jax.Array, ...], jax.Array | None], tuple[jax.Array, jax.Array]
]


class Cell(NamedTuple):
    """The functions of a recurrent layer.

    Attributes:
        name: the name of the cell in errors.
        operands: the names of the projections that `recurrence_inputs` reads.
        parameters: the names of the parameters, one number a channel.
        recurrence_inputs: (parameters, operands, not_reset) -> (a, x), both of the operands' shape, for
            h[t] = a[t] * h[t-1] + x[t]. `not_reset` is false at resets, and None where there are none; that
            a counts as zero at a reset is not the task of the cell.
        readout: the function of one more projection, where one is given, that multiplies the state.
        transcendentals: the number of functions such as tanh that both compute for an element.
        identity_operands: for each operand a value, all of which together make a = 1 and x = 0, whatever
            the parameters: a kernel pads with them.
    """

    name: str
    operands: tuple[str, ...]
    parameters: tuple[str, ...]
    recurrence_inputs: RecurrenceInputs
    readout: Callable[[jax.Array], jax.Array]
    transcendentals: int
    identity_operands: tuple[float, ...]


class GatedScanInputs(NamedTuple):
    """The arrays that a gated recurrent layer reads.

    Attributes:
        operands: the operands of `Cell.recurrence_inputs`, each [batch, length, channels].
        gate: the operand of `Cell.readout`, of that shape; None: the state is the result.
        parameters: the parameters of the cell, each [channels].
        h0: the state before the first step read, [batch, channels].
        resets: for each direction where the decay counts as zero, bool [batch, length]; or None.
    """

    operands: tuple[jax.Array, ...]
    gate: jax.Array | None
    parameters: tuple[jax.Array, ...]
    h0: jax.Array | None
    resets: tuple[jax.Array, ...] | None
