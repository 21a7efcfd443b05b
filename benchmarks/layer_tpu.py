"""HBM bytes of one layer with each scan, compiled for a TPU: `python -m benchmarks.layer_tpu`.

The script requires `pip install libtpu` and no TPU. It compiles one layer of the 1.4B config with its
gradient and rematerialisation, for two rows of 2048 tokens on one chip. In XLA's count of the whole train
step, a scanned layer counts once and the optimizer moves far more bytes, so the script compiles the layer
alone. `scans_in_models.SCANS` lists the scans.
"""

import argparse
import dataclasses
import os
import runpy

os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from benchmarks.scans_in_models import SCANS, scan_replaced
from birdie_jax.config import parse_config
from birdie_jax.models.layer_stacks import Block
from birdie_jax.models.layout import packed_layout


def layer_cost(config, topology, rows):
    """Return XLA's cost analysis of a layer with its gradient."""
    sharding = SingleDeviceSharding(topologies.get_topology_desc(topology, platform="tpu").devices[0])

    def array(shape, dtype):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    length, width = config.batching.length, config.model.features
    block = nn.remat(Block, prevent_cse=True, policy=jax.checkpoint_policies.nothing_saveable)(config.model)

    def output(params, x, segments, bidirectional):
        layout = packed_layout(segments, bidirectional)
        return block.apply({"params": params}, x, None, layout)[0]

    def gradient(params, x, segments, bidirectional, dy):
        y, pull = jax.vjp(lambda params, x: output(params, x, segments, bidirectional), params, x)
        return y, pull(dy)

    shapes = jax.eval_shape(
        lambda: block.init(
            jax.random.key(0),
            jnp.zeros((1, 8, width), jnp.bfloat16),
            None,
            packed_layout(jnp.ones((1, 8), jnp.int32), jnp.ones((1, 8), bool)),
        )
    )["params"]
    params = jax.tree.map(lambda leaf: array(leaf.shape, leaf.dtype), shapes)
    x = array((rows, length, width), jnp.bfloat16)
    marks = array((rows, length), jnp.int32), array((rows, length), jnp.bool_)
    cost = jax.jit(gradient).lower(params, x, *marks, x).compile().cost_analysis()
    if cost is None:
        raise RuntimeError(f"topology {topology}: its compiler gives no cost analysis")
    return cost


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topology", default="v5p:2x2x1")
    parser.add_argument("--models", nargs="*", default=["gated_ssm", "gated_ssm_plus"])
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--scan_dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--scans", nargs="*", default=list(SCANS), choices=SCANS)
    arguments = parser.parse_args()
    get_config = runpy.run_path("configs/birdie_1_4b.py")["get_config"]
    print("| model | recurrence in | scan | GB a layer | times product |")
    print("|---|---|---|---|---|")
    for name in arguments.models:
        for scan_dtype in arguments.scan_dtypes:
            config = parse_config(get_config(name))
            reference = None
            for scan in arguments.scans:
                with scan_replaced(scan) as implementation:
                    model = dataclasses.replace(
                        config.model, scan_implementation=implementation, scan_dtype=scan_dtype
                    )
                    cost = layer_cost(
                        dataclasses.replace(config, model=model), arguments.topology, arguments.rows
                    )
                moved = cost["bytes accessed"] / 1e9
                reference = reference or moved
                print(
                    f"| {name} | {scan_dtype} | {scan} | {moved:.2f} | {moved / reference:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
