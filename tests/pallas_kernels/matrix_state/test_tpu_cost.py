"""Checks the FLOPs that the TPU kernels report against the products of their bodies."""

import math

import jax
import jax.extend
import jax.numpy as jnp
import pytest
from jax.interpreters import partial_eval

from pallas_kernels.matrix_state.tpu import token_flops
from pallas_kernels.matrix_state.tpu_blocks import UnitWeights, read_unit
from pallas_kernels.matrix_state.tpu_grid import HeadGrid
from pallas_kernels.matrix_state.triangular import masked_inverse, masked_inverse_flops

CHUNK, D_K, D_V = 16, 4, 2


def dot_flops(function, *arguments):
    """Return the FLOPs of the products that the results of a function need."""

    def of_equations(jaxpr):
        found = 0
        for equation in jaxpr.eqns:
            found += sum(of_equations(inner) for inner in jax.extend.core.jaxprs_in_params(equation.params))
            if equation.primitive.name == "dot_general":
                contracted = equation.params["dimension_numbers"][0][0]
                shape = equation.invars[0].aval.shape
                found += 2 * equation.outvars[0].aval.size * math.prod(shape[axis] for axis in contracted)
        return found

    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    return of_equations(partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0])


@pytest.mark.parametrize(("heads", "has_beta"), [(1, True), (1, False), (2, False)])
def test_the_reported_flops_are_those_of_the_products(heads, has_beta):
    state = jnp.zeros((D_K, heads * D_V))
    tokens = (jnp.zeros((CHUNK, D_K)),) * 2 + (jnp.zeros((CHUNK, heads * D_V)),)
    row = jnp.zeros((1, CHUNK))
    weights = UnitWeights((row,) * heads, row if has_beta else None)

    def read(state, tokens, weights, inverse):
        return read_unit(state, tokens, weights, None, inverse, reverse=False)

    def forward(state, tokens, weights):
        return read(state, tokens, weights, lambda A: A)

    def backward(state, tokens, weights, dstate, inverse):
        _, pull_back = jax.vjp(
            lambda *arguments: read(*arguments, lambda A: inverse), state, tokens, weights
        )
        return forward(state, tokens, weights)[0], pull_back((dstate, tokens[2]))

    grid = HeadGrid(CHUNK, 1, 1, heads, heads, heads, 1, 1, D_K, D_V, "forward")
    cases = {
        False: dot_flops(forward, state, tokens, weights),
        True: dot_flops(backward, state, tokens, weights, state, jnp.zeros((CHUNK, CHUNK))),
    }
    for is_backward, products in cases.items():
        found = token_flops(grid, has_beta=has_beta, backward=is_backward, passes=1)
        inverse = masked_inverse_flops(CHUNK, 1) if has_beta else 0
        # A product of a unit has the features of all its heads.
        wide = (heads - 1) * (2 if is_backward else 1) * 2 * CHUNK**2 * heads * D_V
        assert found * CHUNK * heads == products - wide + inverse


def test_the_flops_of_the_inverse_are_those_of_its_products():
    A = jnp.zeros((64, 64))
    found = dot_flops(lambda A: masked_inverse(A, upper=False, exact=True), A)
    assert found == masked_inverse_flops(64, 1)
