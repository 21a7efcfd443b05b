"""The gradient of a short convolution: our derivative of the taps against that of JAX.

    taskset -c 0 python -m benchmarks.short_convolution

The script prints the milliseconds of the gradients of inputs and taps, with four taps, followed by SiLU as
in the mixers. Each is the median of nine calls, in turns.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.side_by_side import in_turns
from birdie_jax.models.layers import _convolution, _convolve

SHAPES = ((4, 256, 256), (1, 512, 768), (1, 512, 1536), (1, 2048, 1536))


def gradient(convolve, shape):
    """Return a function of no arguments that computes the gradient at [rows, length, channels]."""
    rows, _, channels = shape
    random = np.random.default_rng(0)

    def draw(*sizes):
        return jnp.asarray(random.normal(size=sizes), jnp.float32)

    segments, tail = jnp.ones(shape[:2], jnp.int32), jnp.zeros((rows, 3, channels))
    cotangent = draw(*shape)

    def loss(x, kernel):
        y = convolve(x, segments, tail, segments[:, :3], kernel)
        return jnp.sum(jax.nn.silu(y) * cotangent)

    return partial(jax.jit(jax.grad(loss, (0, 1))), draw(*shape), draw(4, channels))


def main():
    print("| rows, length, channels | JAX's derivative, ms | ours, ms | ratio |\n|---|---|---|---|")
    for shape in SHAPES:
        before, ours = in_turns([gradient(convolve, shape) for convolve in (_convolution, _convolve)], 9)
        print(f"| {shape} | {1e3 * before:.1f} | {1e3 * ours:.1f} | {before / ours:.1f} |", flush=True)


if __name__ == "__main__":
    main()
