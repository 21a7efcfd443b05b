"""Tests that the cells of recurrent mixers match XLA in the TPU kernel, and that padding has no effect.

Other tests compare the models in XLA with their equations and with layers of other projects.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.models.birdie_ssm import BIRDIE_SSM
from birdie_jax.models.gated_ssm import GATED_SSM
from birdie_jax.models.rg_lru import RG_LRU
from tests.pallas_kernels.gated_scan.one_cell import check_cell_in_kernel

CELLS = pytest.mark.parametrize("cell", [GATED_SSM, RG_LRU, BIRDIE_SSM], ids=lambda cell: cell.name)


@pytest.mark.sampled
@pytest.mark.parametrize("with_gate", [True, False])
@CELLS
def test_the_kernel_matches_xla(cell, with_gate):
    check_cell_in_kernel(cell, with_gate)


@CELLS
def test_padding_leaves_the_state_unchanged(cell):
    parameters = tuple(-jnp.ones(4) for _ in cell.parameters)
    operands = tuple(jnp.full((3, 4), value) for value in cell.identity_operands)
    a, x = cell.recurrence_inputs(parameters, operands, None)
    np.testing.assert_array_equal(a, 1.0)
    np.testing.assert_array_equal(x, 0.0)
