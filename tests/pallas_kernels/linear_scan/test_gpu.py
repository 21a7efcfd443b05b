"""The GPU kernel in the interpreter of Mosaic GPU, which also detects races, against the definitions."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

from pallas_kernels.linear_scan import gpu
from tests.pallas_kernels.linear_scan.oracle import assert_close, inputs
from tests.pallas_kernels.linear_scan.test_backends import DIRECTIONS, expected_of


def check(shape, direction, dtype=jnp.float32, with_resets=True, tolerance=1e-5):
    a, x, h0, dh, reset = inputs(shape, dtype)
    resets = (reset, jnp.roll(reset, 1, axis=1)) if with_resets else None
    options = {
        "resets": None if resets is None else resets[: 2 if direction == "both" else 1],
        "direction": direction,
        "interpret": InterpretGPUParams(),
    }
    h, da, dx, dh0 = expected_of(direction, (a, x, h0), resets, dh)
    assert_close(gpu.forward(a, x, h0, **options), h, tolerance)
    found = gpu.backward(a, jnp.asarray(h, dtype), h0, dh, **options)
    for value, wanted in zip(found, (da, dx, dh0), strict=True):
        assert np.isfinite(np.asarray(value, np.float32)).all()
        assert_close(value, wanted, tolerance)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("shape", [(2, 160, 256), (1, 45, 70)], ids=str)
def test_values_and_gradients(shape, direction):
    check(shape, direction)


def test_without_resets():
    check((1, 64, 256), "both", with_resets=False)


def test_bfloat16_is_right_to_its_rounding():
    check((1, 128, 256), "both", dtype=jnp.bfloat16, tolerance=2**-7)
