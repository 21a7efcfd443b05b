"""gated_delta_rule and ssd compiled for an H200: `python -m benchmarks.matrix_state_gpu`.

The script prints, for each shape and pass of the kernels and of XLA, in bfloat16, in both directions and
with resets:

- the bytes that the program moves, relative to q, k, v and the output once for the forward pass, and to
  these with the cotangent of the output and three cotangents for the gradient;
- the time of its products at the chip's peak, and of its bytes at the chip's bandwidth.

The script needs the compilers (launch/compilers.sh) and no GPU.
"""

import argparse
import itertools

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from birdie_jax.engine.chips import CHIPS
from birdie_jax.planning.compilation import compile_lowered
from birdie_jax.planning.topology import make_topology
from hlo_analysis import read_step_costs
from pallas_kernels.gated_delta_rule import gated_delta_rule
from pallas_kernels.ssd import ssd

# Batch, length, heads, d_k, d_v.
SHAPES = {
    "gated_delta_rule": (2, 2048, 4, 128, 256),
    "gated_delta_rule, 1.4B": (8, 2048, 6, 256, 512),
    "ssd, 1.4B": (8, 2048, 64, 128, 64),
}


def operation(name, array, implementation):
    """Return a function of arrays, and the shapes and dtypes of the arrays."""
    options = {"direction": "both", "implementation": implementation}
    batch, length, heads, d_k, d_v = SHAPES[name]
    numbers, resets = array((batch, length, heads), jnp.float32), (array((batch, length), bool),) * 2
    values = array((batch, length, heads, d_v))
    if name.startswith("ssd"):
        maps = (array((batch, length, 1, d_k)),) * 2

        def scan(*arguments):
            return ssd(*arguments[:-1], resets=arguments[-1], chunk_size=128, **options)[0]

        return scan, (values, numbers, array((heads,), jnp.float32), *maps, resets)
    keys = (array((batch, length, heads, d_k)),) * 2

    def rule(*arguments):
        return gated_delta_rule(*arguments[:-1], resets=arguments[-1], **options)[0]

    return rule, (*keys, values, numbers, numbers, resets)


def main():
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    device, chip = make_topology("h200:1x1", log=print).devices[0], CHIPS["h200"]
    sharding = SingleDeviceSharding(device)

    def array(shape, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    print("| operation | implementation | pass | bytes / least | products | bytes |")
    print("|---|---|---|---|---|---|")
    for name, implementation in itertools.product(SHAPES, ("pallas_gpu", "xla")):
        function, arguments = operation(name, array, implementation)
        operands, result = arguments[:-1], jax.eval_shape(function, *arguments)
        big = [leaf.size * 2 for leaf in operands if leaf.dtype == jnp.bfloat16]
        out = result.size * 2

        def gradients(function, operands, resets, cotangent):
            return jax.vjp(lambda *operands: function(*operands, resets), *operands)[1](cotangent)

        cotangent = array(result.shape, result.dtype)
        passes = {
            "forward": (jax.jit(function).lower(*arguments), sum(big) + out),
            "gradient": (
                jax.jit(gradients, static_argnums=0).lower(function, operands, arguments[-1], cotangent),
                2 * sum(big) + out,
            ),
        }
        for title, (lowered, least) in passes.items():
            costs = read_step_costs(compile_lowered(lowered, "gpu").hlo_text, {})
            products = costs.flops.dot / chip.peak_flops
            moved = costs.traffic_bytes / chip.memory_bandwidth
            times = f"{1e3 * products:.2f} ms | {1e3 * moved:.2f} ms"
            ratio = costs.traffic_bytes / least
            print(f"| {name} | {implementation} | {title} | {ratio:.1f} | {times} |", flush=True)


if __name__ == "__main__":
    main()
