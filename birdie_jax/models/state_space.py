"""A diagonal state-space system in discrete time, and its kernel."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Complex, Float


class StateSpace(NamedTuple):
    """h_t = A' h_{t-1} + u_t, y_t = Re(C' h_t) + D u_t, with one system per head.

    Attributes:
        log_a: dt A, the logarithm of A'. So A'^l is exp(l dt A), without a product of rounded numbers.
        c: C' = C B', the weights of the modes in the output.
        d: D, the factor of the input.
    """

    log_a: Complex[Array, "heads modes"]
    c: Complex[Array, "heads modes"]
    d: Float[Array, " heads"]

    def powers(self, exponents: Float[Array, " exponents"]) -> Complex[Array, "heads modes exponents"]:
        """Return A'^l for each exponent l."""
        return jnp.exp(self.log_a[..., None] * exponents)

    def kernel(self, length: int) -> Float[Array, "heads length"]:
        """Return K_l = Re sum_n C'_n A'_n^l for l < length, without D.

        Shorter kernels are prefixes of longer ones.
        """
        powers = self.powers(jnp.arange(length, dtype=self.d.dtype))
        return jnp.sum((self.c[..., None] * powers).real, axis=1)

    def kernel_with_input(self, length: int) -> Float[Array, "heads length"]:
        """Return the kernel with D added to K_0, so one product computes y."""
        return self.kernel(length).at[:, 0].add(self.d)


def discretise(
    a: Complex[Array, "heads modes"],
    c: Complex[Array, "heads modes"],
    d: Float[Array, " heads"],
    step: Float[Array, " heads"],
) -> StateSpace:
    """Discretise h' = A h + u, y = Re(C h) + D u with a zero-order hold and steps of dt.

    A' = exp(dt A), B' = (A' - 1) / A.
    """
    log_a = step[:, None] * a
    return StateSpace(log_a, c * jnp.expm1(log_a) / a, d)
