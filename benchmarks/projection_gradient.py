"""Times the gradient of projections on CPU, the usual derivative beside ours, in turns.

    python -m benchmarks.projection_gradient

The two run alternately in one process; the medians and their ratio are printed.
"""

import argparse
import functools
import statistics
import time

import flax.linen as nn
import jax
import jax.numpy as jnp

from birdie_jax.models import matmul


class Gates(nn.Module):
    """The projections of a Gated SSM without its recurrence."""

    state: int
    dot_general: object

    @nn.compact
    def __call__(self, x):
        """Map [rows, length, features] to the same."""
        dense = functools.partial(nn.Dense, use_bias=False, dot_general=self.dot_general)
        entry = (
            jax.nn.sigmoid(dense(self.state)(x))
            * dense(self.state)(x)
            * jax.nn.sigmoid(dense(self.state)(x))
        )
        return dense(x.shape[-1])(jax.nn.gelu(dense(self.state)(x)) * entry)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in (("rows", 8), ("length", 256), ("features", 256), ("state", 512), ("repeats", 15)):
        parser.add_argument(f"--{name}", type=int, default=value)
    arguments = parser.parse_args()
    x = jax.random.normal(jax.random.key(0), (arguments.rows, arguments.length, arguments.features))
    gradients = {}
    for name, dot_general in (("usual", jax.lax.dot_general), ("ours", matmul.dot_general)):
        model = Gates(arguments.state, dot_general)
        params = model.init(jax.random.key(1), x)

        def loss(params, x, model=model):
            return jnp.sum(jnp.square(model.apply(params, x)))

        gradients[name] = jax.jit(jax.grad(loss, argnums=(0, 1)))
        jax.block_until_ready(gradients[name](params, x))
    times = {name: [] for name in gradients}
    for _ in range(arguments.repeats):
        for name, gradient in gradients.items():
            begin = time.perf_counter()
            jax.block_until_ready(gradient(params, x))
            times[name].append((time.perf_counter() - begin) * 1e3)
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(", ".join(f"{name} {value:.1f} ms" for name, value in medians.items()))
    print(f"ours takes {medians['ours'] / medians['usual']:.2f} of the usual time")


if __name__ == "__main__":
    main()
