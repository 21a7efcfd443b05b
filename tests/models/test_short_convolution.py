"""The convolution's own derivative, and the inputs that it sees."""

import jax
import jax.numpy as jnp
import numpy as np

from birdie_jax.models.layers import _convolution, _convolve

_SEGMENTS = jnp.array([[1, 1, 1, 2, 2, 0, 3, 3, 3, 3], [4, 4, 4, 4, 4, 4, 4, 0, 0, 0]])
_PREVIOUS = jnp.array([[-1, -1, -1], [4, 4, 4]])


def _arrays():
    random = np.random.default_rng(0)
    return [
        jnp.asarray(random.normal(size=shape), jnp.float32) for shape in ((2, 10, 6), (2, 3, 6), (4, 6))
    ]


def test_each_tap_sees_only_its_sample():
    x, tail, kernel = _arrays()
    y = _convolve(x, _SEGMENTS, tail, _PREVIOUS, kernel)
    inputs, segments = (np.concatenate(pair, axis=1) for pair in ((tail, x), (_PREVIOUS, _SEGMENTS)))
    for row, place in np.ndindex(2, 10):
        own = segments[row, place + 3]
        expected = kernel[0] * x[row, place]
        for tap in range(1, 4):
            if own > 0 and segments[row, place + 3 - tap] == own:
                expected += kernel[tap] * inputs[row, place + 3 - tap]
        np.testing.assert_allclose(y[row, place], expected, rtol=1e-5, atol=1e-6)


def test_the_derivative_is_that_of_the_definition():
    def derivative(convolve):
        def loss(x, tail, kernel):
            return jnp.sum(jnp.sin(convolve(x, _SEGMENTS, tail, _PREVIOUS, kernel)))

        return jax.grad(loss, (0, 1, 2))(*_arrays())

    for own, expected in zip(derivative(_convolve), derivative(_convolution), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)
