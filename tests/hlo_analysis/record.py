"""Record the HLO texts of the tests, with the compilers of launch/compilers.sh:

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.hlo_analysis.record

The script compiles each program for each of its machines. It writes the text to a folder of recorded/ for
the version of JAX, and the counts of XLA's cost analysis to xla.json in that folder. The tests read these
files, and need neither JAX nor a compiler. Another version of JAX may compile a program to other
instructions. The counts in test_recorded.py follow from the programs below and do not change.
"""

import argparse
import gzip
import json
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from birdie_jax.planning.compilation import compile_lowered
from birdie_jax.planning.topology import Topology, make_topology
from tests.hlo_analysis.recorded_texts import AXES, MESHES, RECORDED, XLA_COUNTS, file_of

LAYERS, ROWS, FEATURES = 6, 64, 512


class Program(NamedTuple):
    """A program to record.

    Attributes:
        function: the function to compile.
        arguments: mesh -> shapes, dtypes and shardings of its arguments.
        machines: the target machines.
        donated: the numbers of the donated arguments.
    """

    function: Callable[..., Any]
    arguments: Callable[[Mesh], tuple[jax.ShapeDtypeStruct, ...]]
    machines: tuple[str, ...]
    donated: tuple[int, ...] = ()


def scanned(x, w):
    """Run 7 matrix products in a loop."""
    return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=7)[0]


def nested(x, w):
    """Run `scanned` 3 times in an outer loop."""
    return jax.lax.scan(lambda x, _: (scanned(x, w), None), x, None, length=3)[0]


def unrolled(x, w):
    """Run 7 matrix products without a loop."""
    for _ in range(7):
        x = jnp.tanh(x @ w)
    return x


def layers_gradient(x, ws):
    """Differentiate 6 layers; the forward loop keeps activations for the backward loop."""

    def layer(x, w):
        return jnp.sin(x @ w), None

    return jax.grad(lambda ws: jax.lax.scan(layer, x, ws)[0].sum())(ws)


def sharded_step(x, ws):
    """Train layers with rows sharded over data and fsdp, and parameters over fsdp."""

    def loss(ws):
        def layer(x, w):
            return jnp.tanh(x @ w), None

        return jnp.sum(jnp.square(jax.lax.scan(layer, x, ws)[0].astype(jnp.float32)))

    return ws - jnp.asarray(0.125, ws.dtype) * jax.grad(loss)(ws)


def sum_in_loop(x):
    """Sum over the tensor axis in a loop of 5 iterations."""
    return jax.lax.scan(lambda x, _: (jax.lax.psum(x, "tensor") * 0.5, None), x, None, length=5)[0]


def one_device(*shapes: tuple[int, ...]) -> Callable[[Mesh], tuple[jax.ShapeDtypeStruct, ...]]:
    """Return float32 arguments on the first device of a mesh."""

    def arguments(mesh: Mesh) -> tuple[jax.ShapeDtypeStruct, ...]:
        sharding = jax.sharding.SingleDeviceSharding(mesh.devices.flat[0])
        return tuple(jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding) for shape in shapes)

    return arguments


def sharded_arguments(mesh: Mesh) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return the rows and layers of `sharded_step`."""

    def array(shape: tuple[int, ...], *spec: Any) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)

    return (
        array((ROWS * mesh.size, FEATURES), ("data", "fsdp")),
        array((LAYERS, FEATURES, FEATURES), None, "fsdp"),
    )


def on_all_devices(mesh: Mesh) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return 4 rows of 100 float32 values for each device."""
    sharding = NamedSharding(mesh, PartitionSpec(AXES))
    return (jax.ShapeDtypeStruct((mesh.size * 4, 100), jnp.float32, sharding=sharding),)


def collective(function: Callable[..., Any], *machines: str, **options: Any) -> Program:
    """Return the program of a function that each device runs on its own rows."""
    return Program(partial(function, **options), on_all_devices, machines)


X, W, WS = (32, 64), (64, 64), (LAYERS, 64, 64)
ONE = ("cpu:8", "v5e:2x2", "h200:2x2")
PROGRAMS = {
    "scanned": Program(scanned, one_device(X, W), ONE),
    "nested": Program(nested, one_device(X, W), ONE),
    "unrolled": Program(unrolled, one_device(X, W), ONE),
    "layers_gradient": Program(layers_gradient, one_device(X, WS), ONE),
    "sharded_step": Program(
        sharded_step, sharded_arguments, ("v5p:2x2x1", "v5e:2x2,slices=2", "h200:2x2"), donated=(1,)
    ),
    "all_reduce": collective(jax.lax.psum, "cpu:8", axis_name="tensor"),
    "all_reduce_over_two": collective(jax.lax.psum, "cpu:8", axis_name=("data", "sequence")),
    "all_reduce_over_all": collective(jax.lax.psum, "cpu:8", "v5e:2x2,slices=2", axis_name=AXES),
    "all_reduce_in_a_loop": collective(sum_in_loop, "cpu:8"),
    "all_gather": collective(jax.lax.all_gather, "cpu:8", axis_name="data", axis=0, tiled=True),
    "reduce_scatter": collective(jax.lax.psum_scatter, "cpu:8", axis_name="sequence", tiled=True),
    "all_to_all": collective(
        jax.lax.all_to_all, "cpu:8", axis_name="tensor", split_axis=0, concat_axis=1, tiled=True
    ),
    "collective_permute": collective(
        jax.lax.ppermute, "cpu:8", axis_name="sequence", perm=[(0, 1), (1, 0)]
    ),
}


def make_mesh(topology: Topology) -> Mesh:
    """Return the mesh of a machine; TPU slices are its outermost part."""
    devices = sorted(topology.devices, key=lambda device: (topology.location(device).domain, device.id))
    return Mesh(
        np.array(devices).reshape(MESHES[topology.name]), AXES, axis_types=(AxisType.Auto,) * len(AXES)
    )


def record(version: str, machine: str, name: str, mesh: Mesh) -> dict[str, float]:
    """Compile a program, write its text, and return the counts of XLA's cost analysis."""
    program = PROGRAMS[name]
    function = program.function
    if program.arguments is on_all_devices:
        spec = PartitionSpec(AXES)
        function = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    lowered = jax.jit(function, donate_argnums=program.donated).lower(*program.arguments(mesh))
    compiled = compile_lowered(lowered, mesh.devices.flat[0].platform)
    file = file_of(version, machine, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    # Without a timestamp, the same text gives the same file.
    file.write_bytes(gzip.compress(compiled.hlo_text.encode(), 9, mtime=0))
    cost = compiled.executable.cost_analysis() or {}
    return {"flops": cost.get("flops", 0.0), "bytes_accessed": cost.get("bytes accessed", 0.0)}


def main() -> None:
    """Record every program for each of its machines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machines", nargs="*", default=list(MESHES), choices=MESHES)
    options = parser.parse_args()
    # File names in the texts are relative to the repository, so they are equal on every machine.
    jax.config.update("jax_hlo_source_file_canonicalization_regex", r".*/(?=tests/)")
    version = "jax_" + "_".join(jax.__version__.split(".")[:2])
    counts_file = RECORDED / version / XLA_COUNTS
    counts_file.parent.mkdir(parents=True, exist_ok=True)
    counts: dict[str, Any] = json.loads(counts_file.read_text()) if counts_file.exists() else {}
    for machine in options.machines:
        mesh = make_mesh(make_topology(machine))
        compiler = mesh.devices.flat[0].client.platform_version.splitlines()
        counts[machine] = {"jax": jax.__version__, "compiler": compiler, "programs": {}}
        for name, program in PROGRAMS.items():
            if machine in program.machines:
                counts[machine]["programs"][name] = record(version, machine, name, mesh)
                print(machine, name, flush=True)
    counts_file.write_text(json.dumps(counts, indent=1) + "\n")


if __name__ == "__main__":
    main()
