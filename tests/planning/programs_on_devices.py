"""Run by test_reading.py on eight fake devices: prints what is read from programs of which all is known."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from birdie_jax.planning.reading import read_program

SIZES = {"data": 2, "fsdp": 1, "tensor": 2, "sequence": 2}
MESH = Mesh(
    np.array(jax.devices()).reshape(tuple(SIZES.values())), tuple(SIZES), axis_types=(AxisType.Auto,) * 4
)


def told(function, *arguments):
    """Compile and read a function of float32 arrays whose first axis lies on all axes of the mesh."""
    compiled = jax.jit(function).lower(*arguments).compile()
    reading = read_program(compiled.as_text(), SIZES)
    return {
        "products": reading.flops.products,
        "elementwise": reading.flops.elementwise,
        "xla": compiled.cost_analysis().get("flops", 0.0),
        "activations": reading.activation_bytes,
        "collectives": [
            [one.kind, one.groups.label, one.groups.size, one.times, one.payload, one.sent]
            for one in reading.collectives
        ],
    }


def on_mesh(function, shape):
    spec = PartitionSpec(tuple(SIZES))
    mapped = jax.shard_map(function, mesh=MESH, in_specs=spec, out_specs=spec, check_vma=False)
    array = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(MESH, spec))
    return told(mapped, array)


def scanned(x, w):
    return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=7)[0]


def nested(x, w):
    return jax.lax.scan(lambda x, _: (scanned(x, w), None), x, None, length=3)[0]


def unrolled(x, w):
    for _ in range(7):
        x = jnp.tanh(x @ w)
    return x


def kept(x, ws):
    def layer(x, w):
        return jnp.sin(x @ w), None

    return jax.grad(lambda ws: jax.lax.scan(layer, x, ws)[0].sum())(ws)


def sum_in_loop(x):
    return jax.lax.scan(lambda x, _: (jax.lax.psum(x, "tensor") * 0.5, None), x, None, length=5)[0]


def main():
    square, rows = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((32, 64), jnp.float32)
    layers = jax.ShapeDtypeStruct((6, 64, 64), jnp.float32)
    shape = (8 * 4, 100)
    to_the_right = [(0, 1), (1, 0)]
    print(
        json.dumps(
            {
                "scanned": told(scanned, rows, square),
                "nested": told(nested, rows, square),
                "unrolled": told(unrolled, rows, square),
                "kept": told(kept, rows, layers),
                "all-reduce": on_mesh(partial(jax.lax.psum, axis_name="tensor"), shape),
                "all-reduce over two": on_mesh(
                    partial(jax.lax.psum, axis_name=("data", "sequence")), shape
                ),
                "all-reduce over all": on_mesh(partial(jax.lax.psum, axis_name=tuple(SIZES)), shape),
                "all-reduce in a loop": on_mesh(sum_in_loop, shape),
                "all-gather": on_mesh(
                    partial(jax.lax.all_gather, axis_name="data", axis=0, tiled=True), shape
                ),
                "reduce-scatter": on_mesh(
                    partial(jax.lax.psum_scatter, axis_name="sequence", tiled=True), shape
                ),
                "all-to-all": on_mesh(
                    partial(
                        jax.lax.all_to_all, axis_name="tensor", split_axis=0, concat_axis=1, tiled=True
                    ),
                    shape,
                ),
                "collective-permute": on_mesh(
                    partial(jax.lax.ppermute, axis_name="sequence", perm=to_the_right), shape
                ),
            }
        )
    )


if __name__ == "__main__":
    main()
