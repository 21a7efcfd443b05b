"""Products of few tokens and kernels on a CPU: `taskset -c 0 python -m benchmarks.few_tokens`.

The script prints the microseconds of a product in a loop over 40 tokens and six pairs of kernels, in
float32 or --dtype. It compares two forms: the usual one with the rows on the left, and one with the
kernel on the left, transposed before the loop, as decoding does for `FEW_TOKENS` rows. The forms take
turns. The result is the best of five times.
"""

import argparse
import time
from functools import partial

from birdie_jax.host_memory import keep_freed_memory

# This must run before JAX allocates memory. See keep_freed_memory.
keep_freed_memory()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from birdie_jax.models.layers import kernel_first  # noqa: E402

WIDTHS, PAIRS, TOKENS, ROUNDS = ((256, 256), (256, 768), (256, 4096)), 6, 40, 5


def rows_first(x, kernel):
    """Return the usual product, with the rows on the left."""
    return x @ kernel


@partial(jax.jit, static_argnums=0)
def loop(product, x, kernels):
    """Apply all pairs of kernels to `x`, once for every token."""
    if product is kernel_first:
        kernels = [(first.T, second.T) for first, second in kernels]

    def step(_, x):
        for first, second in kernels:
            x += product(jnp.tanh(product(x, first)), second)
        return x

    return jax.lax.fori_loop(0, TOKENS, step, x)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 2, 4, 8, 12, 16, 32, 64])
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    print("| kernel | rows | rows on the left, us | kernel on the left, us | times as fast |")
    print("|---|---|---|---|---|")
    for inputs, outputs in WIDTHS:
        keys = jax.random.split(jax.random.key(0), 2 * PAIRS)
        shapes = [(inputs, outputs), (outputs, inputs)] * PAIRS
        scaled = [
            (0.1 * jax.random.normal(key, shape) * shape[0] ** -0.5).astype(arguments.dtype)
            for key, shape in zip(keys, shapes, strict=True)
        ]
        kernels = list(zip(scaled[::2], scaled[1::2], strict=True))
        for rows in arguments.rows:
            x = jax.random.normal(keys[0], (rows, inputs)).astype(arguments.dtype)
            best = {}
            for _ in range(1 + ROUNDS):
                for product in (rows_first, kernel_first):
                    begin = time.perf_counter()
                    jax.block_until_ready(loop(product, x, kernels))
                    seconds = time.perf_counter() - begin
                    best[product] = min(seconds, best.get(product, seconds))
            left, right = (1e6 * seconds / TOKENS / 2 / PAIRS for seconds in best.values())
            print(
                f"| {inputs} x {outputs} | {rows} | {left:.0f} | {right:.0f} | {left / right:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
