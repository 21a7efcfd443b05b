"""The recurrence and its gradient by their definitions, in float64, and inputs for them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest


def oracle(a, x, h0=None, *, reverse=False, reset=None):
    """Compute h by the definition, one step at a time in float64."""
    a, x = np.array(a, np.float64), np.asarray(x, np.float64)
    if reset is not None:
        a[np.asarray(reset)] = 0
    h = np.zeros_like(x)
    carried = np.zeros_like(x[:, 0]) if h0 is None else np.asarray(h0, np.float64)
    steps = range(x.shape[1])
    for t in reversed(steps) if reverse else steps:
        carried = h[:, t] = a[:, t] * carried + x[:, t]
    return h


def oracle_gradients(a, x, h0, dh, *, reverse=False, reset=None):
    """Compute (da, dx, dh0) by the chain rule, one step at a time in float64."""
    h = oracle(a, x, h0, reverse=reverse, reset=reset)
    kept = np.ones_like(h) if reset is None else np.where(np.asarray(reset)[..., None], 0.0, 1.0)
    a = np.asarray(a, np.float64) * kept
    da, dx, carried = np.zeros_like(h), np.zeros_like(h), np.zeros_like(h[:, 0])
    steps = range(h.shape[1])[:: -1 if reverse else 1]
    for order, t in reversed(list(enumerate(steps))):
        dx[:, t] = np.asarray(dh, np.float64)[:, t] + carried
        before = np.asarray(h0, np.float64) if order == 0 else h[:, steps[order - 1]]
        da[:, t] = dx[:, t] * before * kept[:, t]
        carried = dx[:, t] * a[:, t]
    return da, dx, carried


def inputs(shape=(2, 7, 3), dtype=np.float32, seed=0):
    """Return a in (0, 1), x, h0, a cotangent, and a reset that is true for a third of the tokens."""
    random = np.random.default_rng(seed)
    batch, length, channels = shape
    a = random.uniform(0, 1, shape)
    x, dh = random.normal(size=(2, *shape))
    h0 = random.normal(size=(batch, channels))
    reset = random.uniform(size=(batch, length)) < 1 / 3
    return (*(jnp.asarray(value, dtype) for value in (a, x, h0, dh)), jnp.asarray(reset))


def assert_close(result, expected, tolerance=1e-5):
    """Compare relative to the largest magnitude, because terms of both signs cancel."""
    scale = max(np.abs(expected).max(initial=0), 1e-30)
    np.testing.assert_allclose(
        np.asarray(result, np.float64) / scale, expected / scale, atol=tolerance, rtol=0
    )


TPU_SHAPES = pytest.mark.parametrize(
    ("shape", "kernel"), [((1, 256, 256), True), ((1, 250, 256), False), ((1, 256, 100), False)], ids=str
)


def check_tpu_calls(function, arguments, kernel, calls=2):
    """Check that a function runs `calls` kernels on a TPU if `kernel` is true, and none elsewhere.

    A gradient runs two.
    """
    for platform in ("tpu", "cpu", "cuda"):
        text = jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
        assert text.count("@tpu_custom_call") == (calls if kernel and platform == "tpu" else 0), platform
