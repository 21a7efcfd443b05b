"""What surrounds a recurrence, element by element: from projections to its inputs, and the output gate.

A cell is the part of a recurrent layer between its projections. Its functions see any block of
[time, channels] in float32, the whole sequence or a tile of it in a kernel, and treat each element
independently. `elementwise` has functions to make one of.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

# Each has a derivative of its own, exact or bounded, that Mosaic can compile.

GELU_LINEAR = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715 * GELU_LINEAR
MAX_ROOT_SLOPE = 1000.0


@jax.custom_jvp
def sigmoid(x: jax.Array) -> jax.Array:
    """1 / (1 + exp(-x)) by tanh, one transcendental function instead of an exponential and a division."""
    return 0.5 * jnp.tanh(0.5 * x) + 0.5


@sigmoid.defjvp
def _sigmoid_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    s = sigmoid(*primals)
    return s, (s - s * s) * tangents[0]


@jax.custom_jvp
def gelu(x: jax.Array) -> jax.Array:
    """X * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), the tanh form of GELU (Hendrycks and Gimpel 2016)."""
    return x * _gelu_gate(x)


def _gelu_gate(x: jax.Array) -> jax.Array:
    """Return the gate g of GELU(x) = x * g."""
    return 0.5 * jnp.tanh(x * (GELU_LINEAR + GELU_CUBIC * (x * x))) + 0.5


@gelu.defjvp
def _gelu_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (x,) = primals
    gate = _gelu_gate(x)
    slope = 2 * GELU_LINEAR + 6 * GELU_CUBIC * (x * x)
    return x * gate, (gate + x * slope * (gate - gate * gate)) * tangents[0]


@jax.custom_jvp
def one_minus_square_of_exp(x: jax.Array) -> jax.Array:
    """1 - exp(x)^2 for x <= 0, without cancellation near 0."""
    t = jnp.tanh(x)
    return -2 * t / (1 - t)


@one_minus_square_of_exp.defjvp
def _one_minus_square_of_exp_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    value = one_minus_square_of_exp(*primals)
    return value, (2 * value - 2) * tangents[0]


@jax.custom_jvp
def bounded_sqrt(x: jax.Array) -> jax.Array:
    """Square root whose derivative is at most `MAX_ROOT_SLOPE` (Birdie paper, appendix E.3)."""
    return jnp.sqrt(x)


@bounded_sqrt.defjvp
def _bounded_sqrt_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (x,) = primals
    slope = 0.5 * jax.lax.rsqrt(jnp.maximum(x, 1 / (2 * MAX_ROOT_SLOPE) ** 2))
    return jnp.sqrt(x), slope * tangents[0]


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
        identity_operands: a value for each operand. Together they make a = 1 and x = 0 for any
            parameters; a kernel pads with them.
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
