"""The elementwise parts of a recurrent layer: the inputs of the recurrence, and the output gate.

A cell is the part of a recurrent layer between its projections. Its functions take any [time, channels]
block in float32, which is the whole sequence or a tile of it in a kernel. They treat each element
independently. The functions of this module are parts for cells.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

# Each function has a custom derivative, exact or bounded, that Mosaic can compile.

GELU_LINEAR = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715 * GELU_LINEAR
MAX_ROOT_SLOPE = 1000.0


@jax.custom_jvp
def sigmoid(x: jax.Array) -> jax.Array:
    """1 / (1 + exp(-x)), computed with one tanh instead of an exponential and a division."""
    return 0.5 * jnp.tanh(0.5 * x) + 0.5


@sigmoid.defjvp
def _sigmoid_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    s = sigmoid(*primals)
    return s, (s - s * s) * tangents[0]


@jax.custom_jvp
def gelu(x: jax.Array) -> jax.Array:
    """GELU in its tanh form, x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)) (Hendrycks and Gimpel 2016)."""
    return x * _gelu_gate(x)


def _gelu_gate(x: jax.Array) -> jax.Array:
    """Return g in GELU(x) = x * g."""
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
    """Square root with a derivative of at most `MAX_ROOT_SLOPE` (Birdie paper, appendix E.3)."""
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
        parameters: the names of the parameters, each with one number per channel.
        recurrence_inputs: (parameters, operands, not_reset) -> (a, x), both of the operands' shape, for
            h[t] = a[t] * h[t-1] + x[t]. `not_reset` is false at resets, and None without resets. The cell
            does not need to set a to zero at resets; the scan does.
        readout: gate -> the factor of the state in y. The gate is one more projection, and optional.
        transcendentals: the number of functions such as tanh that both compute per element.
        identity_operands: a value for each operand. Together they give a = 1 and x = 0 for any
            parameters; a kernel uses them as padding.
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
        gate: the operand of `Cell.readout`, of the same shape; if None, the result is the state.
        parameters: the parameters of the cell, each [channels].
        h0: the state before the first step in reading order, [batch, channels].
        resets: for each direction, the steps where the decay counts as zero, bool [batch, length]; or None.
    """

    operands: tuple[jax.Array, ...]
    gate: jax.Array | None
    parameters: tuple[jax.Array, ...]
    h0: jax.Array | None
    resets: tuple[jax.Array, ...] | None
