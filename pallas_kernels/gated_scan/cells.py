"""What surrounds a recurrence, element by element: from projections to decay and entry; the output gate.

A cell is the part of a recurrent layer between its projections. Its functions see any block of
[time, channels] in float32, the whole sequence or a tile of it in a kernel, and treat each element alone.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

GELU_LINEAR = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715 * GELU_LINEAR


class Cell(NamedTuple):
    """The functions of a recurrent layer.

    Attributes:
        name: what errors call it.
        operands: names of the projections that `enter` reads.
        parameters: names of the parameters, one number a channel.
        enter: (parameters, operands, keep) -> (decay, entry), of the operands' shape. `keep` is false where
            the state is cut, and None where nowhere; that the decay counts as zero there is not its task.
        readout: what multiplies the state, a function of one more projection, where one is given.
        transcendentals: how many functions such as tanh `enter` and `readout` compute for an element.
        open_gate: for each operand a value that together with all others makes decay 1 and entry 0: what a
            kernel pads with.
    """

    name: str
    operands: tuple[str, ...]
    parameters: tuple[str, ...]
    enter: Callable
    readout: Callable
    transcendentals: int
    open_gate: tuple[float, ...]


class Inputs(NamedTuple):
    """What a gated recurrent layer reads.

    Attributes:
        operands: what `Cell.enter` reads, each [batch, length, channels].
        gate: what `Cell.readout` reads, of that shape; None: the state is what comes out.
        parameters: each [channels].
        h0: state before the first step read, [batch, channels].
        resets: for each direction where the decay counts as zero, bool [batch, length]; or None.
    """

    operands: tuple[jax.Array, ...]
    gate: jax.Array | None
    parameters: tuple[jax.Array, ...]
    h0: jax.Array | None
    resets: tuple[jax.Array, ...] | None


@jax.custom_jvp
def sigmoid(x: jax.Array) -> jax.Array:
    """1 / (1 + exp(-x)) by tanh, one transcendental function instead of an exponential and a division."""
    return 0.5 * jnp.tanh(0.5 * x) + 0.5


@sigmoid.defjvp
def _sigmoid_jvp(primals, tangents):
    s = sigmoid(*primals)
    return s, (s - s * s) * tangents[0]


@jax.custom_jvp
def gelu(x: jax.Array) -> jax.Array:
    """X * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), the tanh form of GELU (Hendrycks and Gimpel 2016)."""
    return x * _share(x)


def _share(x):
    """By how much GELU multiplies x."""
    return 0.5 * jnp.tanh(x * (GELU_LINEAR + GELU_CUBIC * (x * x))) + 0.5


@gelu.defjvp
def _gelu_jvp(primals, tangents):
    (x,) = primals
    share = _share(x)
    slope = 2 * GELU_LINEAR + 6 * GELU_CUBIC * (x * x)
    return x * share, (share + x * slope * (share - share * share)) * tangents[0]


def _gated_ssm_enter(parameters, operands, keep):
    del keep
    (forget_bias,) = parameters
    input_gate, candidate, forget_gate = operands
    return sigmoid(forget_gate + forget_bias), sigmoid(input_gate) * candidate


GATED_SSM = Cell(
    name="gated_ssm",
    operands=("input_gate", "candidate", "forget_gate"),
    parameters=("forget_bias",),
    enter=_gated_ssm_enter,
    readout=gelu,
    transcendentals=3,
    open_gate=(0.0, 0.0, 1e4),
)
"""Gated SSM of the Birdie paper, section 3.4: decay sigmoid(W_f x + b_f), entry sigmoid(W_i x) * W_z x,
output gate GeLU(W_o x)."""


def _birdie_ssm_enter(parameters, operands, keep):
    del parameters, keep
    entry, forget_gate = operands
    return sigmoid(forget_gate), entry


BIRDIE_SSM = Cell(
    name="birdie_ssm",
    operands=("entry", "forget_gate"),
    parameters=(),
    enter=_birdie_ssm_enter,
    readout=gelu,
    transcendentals=1,
    open_gate=(0.0, 1e4),
)
"""Minimalist Birdie SSM of the early draft, section 3.1: decay sigmoid(W_f x), the entry as it comes."""


LARGEST_ROOT_SLOPE = 1000.0


@jax.custom_jvp
def _one_minus_square_of_exp(x):
    """1 - exp(x)^2 for x <= 0, without cancellation near 0."""
    t = jnp.tanh(x)
    return -2 * t / (1 - t)


@_one_minus_square_of_exp.defjvp
def _one_minus_square_of_exp_jvp(primals, tangents):
    value = _one_minus_square_of_exp(*primals)
    return value, (2 * value - 2) * tangents[0]


@jax.custom_jvp
def bounded_sqrt(x: jax.Array) -> jax.Array:
    """Square root whose derivative is at most `LARGEST_ROOT_SLOPE` (Birdie paper, appendix E.3)."""
    return jnp.sqrt(x)


@bounded_sqrt.defjvp
def _bounded_sqrt_jvp(primals, tangents):
    (x,) = primals
    slope = 0.5 * jax.lax.rsqrt(jnp.maximum(x, 1 / (2 * LARGEST_ROOT_SLOPE) ** 2))
    return jnp.sqrt(x), slope * tangents[0]


def _rg_lru_enter(parameters, operands, keep):
    (rate,) = parameters
    recurrence_gate, input_gate, x = operands
    log_decay = rate * sigmoid(recurrence_gate)
    multiplier = bounded_sqrt(_one_minus_square_of_exp(log_decay))
    if keep is not None:
        multiplier = jnp.where(keep, multiplier, 1.0)
    return jnp.exp(log_decay), multiplier * (sigmoid(input_gate) * x)


RG_LRU = Cell(
    name="rg_lru",
    operands=("recurrence_gate", "input_gate", "x"),
    parameters=("rate",),
    enter=_rg_lru_enter,
    readout=gelu,
    transcendentals=7,
    open_gate=(-1e4, 0.0, 0.0),
)
"""RG-LRU of Griffin, section 2.4, in the place that Hawk has it: decay exp(rate * r) with r a sigmoid and
rate = -8 softplus(lambda), entry sqrt(1 - decay^2) * sigmoid * x, with the decay taken as zero in the root
too where the state is cut; output gate GeLU."""
