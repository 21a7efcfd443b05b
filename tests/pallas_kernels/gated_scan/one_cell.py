"""A check of a cell in the TPU kernel against the same cell in plain XLA. The tests of all cells use it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.gated_scan import gated_scan
from tests.pallas_kernels.linear_scan.oracle import assert_close
from tests.quick_jit import quick_jit


def check_cell_in_kernel(cell, with_gate):
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
