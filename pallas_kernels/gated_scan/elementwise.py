"""Element-wise functions of float32 arrays that cells are made of, also inside TPU kernels.

Each has a derivative of its own, exact or bounded, that Mosaic can compile.
"""

import math

import jax
import jax.numpy as jnp

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
    """Return the factor by which GELU multiplies x."""
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
