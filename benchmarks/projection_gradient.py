"""Time the gradient of projections on a CPU: the usual derivative and ours.

    python -m benchmarks.projection_gradient

The two derivatives take turns in one process. The script prints the medians and their ratio.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from birdie_jax.models.layers import matmul


class Gates(nn.Module):
    """The projections of a Gated SSM without its recurrence."""

    state: int
    product: Callable[[jax.Array, jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x):
        """Map [rows, length, features] to the same shape."""

        def projected(name, x, features):
            shape = (x.shape[-1], features)
            return self.product(x, self.param(name, nn.initializers.lecun_normal(), shape))

        input_gate, value, forget_gate, output_gate = (
            projected(name, x, self.state) for name in ("input_gate", "input", "forget_gate", "output_gate")
        )
        entry = jax.nn.sigmoid(input_gate) * value * jax.nn.sigmoid(forget_gate)
        return projected("out", jax.nn.gelu(output_gate) * entry, x.shape[-1])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in (("rows", 8), ("length", 256), ("features", 256), ("state", 512), ("repeats", 15)):
        parser.add_argument(f"--{name}", type=int, default=value)
    arguments = parser.parse_args()
    x = jax.random.normal(jax.random.key(0), (arguments.rows, arguments.length, arguments.features))
    gradients = {}
    for name, product in (("usual", jnp.matmul), ("ours", matmul)):
        model = Gates(arguments.state, product)
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
