"""linear_scan compiled for an H200 that is not there: `python -m benchmarks.scan_gpu`.

Needs jax-cuda13-pjrt, jax-cuda13-plugin, nvidia-cuda-nvcc and nvidia-nvvm of JAX's version, and no GPU.
Both passes must compile, in both types, both ways with resets; nothing is timed.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import time

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from pallas_kernels.linear_scan import gpu

SHAPES = ((8, 2048, 2048), (1, 16384, 2048))
# What XLA asks of a device, from the properties that the CUDA driver reports of an H200.
H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 150000000000 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 } runtime_version { major: 12 minor: 8 }
device_description_str: "NVIDIA H200"
"""


def main():
    topology = topologies.get_topology_desc("1x1x1", "cuda", target_config=H200, topology="1x1x1")
    sharding = SingleDeviceSharding(topology.devices[0])

    def array(shape, dtype):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def forward(a, x, h0, reset):
        return gpu.forward(a, x, h0, resets=(reset, reset), direction="both")

    def backward(a, h, h0, dh, reset):
        return gpu.backward(a, h, h0, dh, resets=(reset, reset), direction="both")

    print("| type | shape | pass | compile s |")
    print("|---|---|---|---|")
    for dtype in ("bfloat16", "float32"):
        for batch, length, channels in SHAPES:
            block = array((batch, length, channels), jnp.dtype(dtype))
            state, reset = array((batch, channels), jnp.float32), array((batch, length), jnp.bool_)
            for function, arguments in (
                (forward, (block, block, state, reset)),
                (backward, (block, block, state, block, reset)),
            ):
                begin = time.monotonic()
                compiled = jax.jit(function).lower(*arguments).compile()
                if "mosaic_gpu" not in compiled.as_text():
                    raise RuntimeError(f"no kernel in the program of {function.__name__}")
                seconds = time.monotonic() - begin
                shape = [batch, length, channels]
                print(f"| {dtype} | {shape} | {function.__name__} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
