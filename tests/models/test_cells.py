"""Tests that the cells of recurrent mixers match XLA in the TPU kernel, and that padding has no effect.

Other tests compare the models in XLA with their equations and with layers of other projects.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.models.birdie_ssm import BIRDIE_SSM
from birdie_jax.models.gated_ssm import GATED_SSM
from birdie_jax.models.rg_lru import RG_LRU
from pallas_kernels.gated_scan import gated_scan
from tests.pallas_kernels.linear_scan.oracle import assert_close
from tests.quick_jit import quick_jit

NAME = {"ids": lambda cell: getattr(cell, "name", None)}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("cell", "with_gate"),
    [(GATED_SSM, True), (GATED_SSM, False), (RG_LRU, True), (BIRDIE_SSM, False)],
    **NAME,
)
def test_the_kernel_matches_xla(cell, with_gate):
    """Compare values and gradients in both directions, with resets and a length that needs padding."""
    random = np.random.default_rng(0)
    shape = (1, 130, 6)
    operands = tuple(jnp.asarray(random.normal(size=shape), jnp.float32) for _ in cell.operands)
    parameters = tuple(-jnp.asarray(random.uniform(0.1, 1, size=6), jnp.float32) for _ in cell.parameters)
    gate = jnp.asarray(random.normal(size=shape), jnp.float32) if with_gate else None
    resets = tuple(jnp.asarray(random.uniform(size=(1, 130)) < 0.1) for _ in range(2))
    h0 = jnp.asarray(random.normal(size=(1, 6)), jnp.float32)

    @partial(quick_jit, static_argnums=0)
    def results(implementation, *arrays):
        def scan(operands, gate, parameters, h0):
            options = {"h0": h0, "resets": resets, "implementation": implementation}
            return gated_scan(cell, operands, gate, parameters, direction="both", **options)

        found, pullback = jax.vjp(scan, *arrays)
        return found, pullback(jax.tree.map(jnp.cos, found))

    arrays = (operands, gate, parameters, h0)
    expected = jax.tree.leaves(results("xla", *arrays))
    for value, wanted in zip(jax.tree.leaves(results("pallas_interpret", *arrays)), expected, strict=True):
        assert_close(value, np.asarray(wanted))


@pytest.mark.parametrize("cell", [GATED_SSM, RG_LRU, BIRDIE_SSM], **NAME)
def test_padding_leaves_the_state_unchanged(cell):
    parameters = tuple(-jnp.ones(4) for _ in cell.parameters)
    operands = tuple(jnp.full((3, 4), value) for value in cell.identity_operands)
    a, x = cell.recurrence_inputs(parameters, operands, None)
    np.testing.assert_array_equal(a, 1.0)
    np.testing.assert_array_equal(x, 0.0)
