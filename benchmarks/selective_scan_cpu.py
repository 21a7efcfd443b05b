"""Mamba's scan on a CPU: `taskset -c 0 python -m benchmarks.selective_scan_cpu`.

The script prints milliseconds of a forward pass, of the gradient including the forward pass, and of the
exponentials of all states alone. The shape is [2, 256, 512] with 16 states in float32. It measures each
direction and prints the best of nine calls.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.selective_scan import selective_scan

SHAPE, STATES = (2, 256, 512), 16
CALLS = 9


def milliseconds(function, *arguments):
    """Return the best time of a compiled function, in milliseconds."""
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(*arguments))
    times = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times)


def main():
    random = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(random.normal(size=shape), jnp.float32)

    batch, length, channels = SHAPE
    columns = (draw(batch, length, STATES), draw(batch, length, STATES))
    arguments = (draw(*SHAPE), draw(*SHAPE), -jnp.exp(draw(channels, STATES)), *columns, draw(channels))
    options = {"z": draw(*SHAPE), "dt_bias": draw(channels) - 4}
    exponentials = milliseconds(jnp.exp, draw(batch * length, STATES, channels))
    print("| direction | forward | with gradient | exponentials alone |\n|---|---|---|---|")
    for direction in ("forward", "both"):

        def forward(*arguments, direction=direction):
            return selective_scan(*arguments, **options, direction=direction)[0]

        def loss(*arguments, forward=forward):
            return jnp.sum(forward(*arguments) ** 2)

        gradient = jax.grad(loss, argnums=tuple(range(len(arguments))))
        found = [milliseconds(function, *arguments) for function in (forward, gradient)]
        print(f"| {direction} | {found[0]:.1f} | {found[1]:.1f} | {exponentials:.1f} |", flush=True)


if __name__ == "__main__":
    main()
