"""Compile the real train step for absent TPUs: `python -m benchmarks.train_step_tpu`.

The script requires `pip install libtpu` and no TPU. For each topology it prints whether the step of the
1.4B config compiles on the mesh --mesh, the seconds of compiling, the bytes that a chip needs, and the
compiled FLOPs. The batch has --rows_per_chip rows for each device along `data` and `fsdp`.
`cost_analysis` counts the body of a scanned loop once, so the FLOPs cover one layer, one loss chunk and
one part of the batch.
"""

import argparse
import dataclasses
import functools
import os
import runpy
import time

os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from benchmarks.scans_in_models import SCANS, scan_replaced
from birdie_jax.batch import Batch
from birdie_jax.config import MeshConfig, parse_config
from birdie_jax.engine.mesh import arrange, mesh_sizes, replicated, state_sharding
from birdie_jax.engine.sharded_step import take_step
from birdie_jax.engine.state import TrainState
from birdie_jax.models import build_model
from birdie_jax.models.parameters import parameter_policies
from birdie_jax.optimizers import make_optimizer
from birdie_jax.planning.compilation import abstract_batch
from birdie_jax.pretraining.language_model_step import language_model_loss
from birdie_jax.vocabulary import padded_vocab_size


def compile_for(topology, config, rows_per_chip, scan, implementation):
    devices = topologies.get_topology_desc(topology, platform="tpu").devices
    sizes = mesh_sizes(config.mesh, len(devices))
    rows = rows_per_chip * sizes["data"] * sizes["fsdp"]
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, scan_implementation=implementation),
        batching=dataclasses.replace(config.batching, rows=rows),
        train=dataclasses.replace(config.train, accumulation_steps=1),
    )
    vocab_size = padded_vocab_size(config.data.vocab_size)
    mesh = arrange(sizes, devices)
    batch = abstract_batch(config, mesh)
    model = build_model(config.model, vocab_size)
    optimizer = make_optimizer(config.optimizer, config.train.num_steps, parameter_policies(model))

    def create_state():
        one = jnp.zeros((1, 8), jnp.int32)
        params = model.init(jax.random.key(0), Batch(one, one, one > 0, one, one, one > 0, one))["params"]
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), {})

    shapes = jax.eval_shape(create_state)
    shardings = state_sharding(mesh, shapes, parameter_policies(model))
    state = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        shardings,
    )
    step = functools.partial(
        take_step, language_model_loss(model, 104, config.train.loss_chunk), optimizer, 1
    )
    begin = time.monotonic()
    shape = " ".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1)
    row = (
        f"| {topology} | {len(devices)} | {shape} | {config.model.name} | {scan} "
        f"| {config.batching.length} | {rows_per_chip} "
    )
    try:
        with jax.set_mesh(mesh):
            compiled = (
                jax.jit(step, out_shardings=(shardings, replicated(mesh)), donate_argnums=0)
                .lower(state, batch)
                .compile()
            )
    except jax.errors.JaxRuntimeError as error:
        # The TPU compiler refuses programs that do not fit; its message has the bytes that they need.
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        print(f"{row}| does not fit: {str(error).splitlines()[0]}", flush=True)
        return
    seconds = time.monotonic() - begin
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    if memory is None or cost is None:
        raise RuntimeError(f"topology {topology}: its compiler gives no analysis of memory and cost")
    gibibyte = 2**30
    print(
        f"{row}| {seconds:.0f} | {memory.argument_size_in_bytes / gibibyte:.1f} "
        f"| {memory.temp_size_in_bytes / gibibyte:.1f} | {cost['flops'] / 1e12:.2f} "
        f"| {cost['bytes accessed'] / 1e9:.2f} |",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topologies", nargs="*", default=["v5p:2x2x1", "v5e:2x2", "v4:2x2x1"])
    parser.add_argument("--models", nargs="*", default=["gated_ssm_plus", "gated_ssm"])
    parser.add_argument("--scans", nargs="*", default=["gated_scan"], choices=SCANS)
    parser.add_argument("--config", default="configs/birdie_1_4b.py")
    parser.add_argument("--rows_per_chip", type=int, default=2)
    parser.add_argument("--length", type=int, default=0, help="tokens of a row; 0 = the config's")
    parser.add_argument("--mesh", default="data=-1", help="such as data=1,fsdp=4")
    arguments = parser.parse_args()
    axes = dict(part.split("=") for part in arguments.mesh.split(","))
    mesh = MeshConfig(**{"data": 1, "fsdp": 1} | {axis: int(size) for axis, size in axes.items()})
    get_config = runpy.run_path(arguments.config)["get_config"]
    print(
        "| topology | chips | mesh | model | scan | length | rows a chip "
        "| compile s | state GiB | temp GiB | TFLOP | HBM GB |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for topology in arguments.topologies:
        for model in arguments.models:
            for scan in arguments.scans:
                config = dataclasses.replace(parse_config(get_config(model)), mesh=mesh)
                length = arguments.length or config.batching.length
                config = dataclasses.replace(
                    config, batching=dataclasses.replace(config.batching, length=length)
                )
                with scan_replaced(scan) as implementation:
                    compile_for(topology, config, arguments.rows_per_chip, scan, implementation)


if __name__ == "__main__":
    main()
