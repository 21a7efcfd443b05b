"""Published figures of the chips that `plan` supports, each with its source page.

Bandwidths of links and networks are for one direction. The pages state the sum of both directions, or of
all links. The memory of a TPU is the limit that its compiler states when it rejects a program. This limit
is slightly below the memory on the page.
"""

from collections.abc import Sequence
from typing import NamedTuple

_GIB = 2**30
_TPU_PAGES = "https://cloud.google.com/tpu/docs/"
_RINGS = "https://jax-ml.github.io/scaling-book/tpus/"


class Chip(NamedTuple):
    """The figures of one chip.

    Attributes:
        title: the name of the chip as its vendor writes it.
        peak_flops: the dense bfloat16 FLOPs per second of matrix products with float32 sums.
        memory_bytes: the main memory that a program may fill.
        memory_bandwidth: the bytes per second between main memory and the chip.
        link_bandwidth: the bytes per second in one direction of one link to a neighbour (TPU), or of all
            links to the switch of the host (GPU).
        network_bandwidth: the bytes per second in one direction between slices or hosts, for each chip.
        grid_dimensions: the number of dimensions of the grid of links. 0: there is no grid; a switch
            connects all devices of a host.
        min_ring_extent: the smallest extent at which a dimension of the grid closes to a ring, if this
            depends on that dimension alone. 0: all dimensions are rings if all extents are multiples of 4.
        max_devices: the largest number of devices of a slice, or of a host.
        kinds: the names of the chip in JAX, `jax.Device.device_kind`.
        sources: the pages that state the figures.
    """

    title: str
    peak_flops: float
    memory_bytes: float
    memory_bandwidth: float
    link_bandwidth: float
    network_bandwidth: float
    grid_dimensions: int
    min_ring_extent: int
    max_devices: int
    kinds: tuple[str, ...]
    sources: tuple[str, ...]

    @property
    def is_gpu(self) -> bool:
        """Whether the chip is a GPU. A switch connects the GPUs of a host."""
        return self.grid_dimensions == 0

    def is_ring(self, extent: int, extents: Sequence[int]) -> bool:
        """Return whether a dimension of the grid of links closes to a ring.

        Args:
            extent: the extent of the dimension.
            extents: the extents of all dimensions of the slice.
        """
        if self.min_ring_extent:
            return extent >= self.min_ring_extent
        return all(other % 4 == 0 for other in extents)


CHIPS = {
    "v4": Chip(
        "TPU v4",
        peak_flops=275e12,
        memory_bytes=30.75 * _GIB,
        memory_bandwidth=1200e9,
        link_bandwidth=50e9,
        network_bandwidth=6.25e9,
        grid_dimensions=3,
        min_ring_extent=0,
        max_devices=4096,
        kinds=("TPU v4",),
        sources=(
            f"{_TPU_PAGES}v4: 275 TFLOP/s, 32 GiB, 1200 GB/s, 4096 chips; rings where all extents are "
            "multiples of 4",
            "Jouppi et al. 2023, https://arxiv.org/abs/2304.01433, table 4: 6 links of 50 GB/s",
            f"{_RINGS}: 6.25 GB/s a chip between slices",
        ),
    ),
    "v5e": Chip(
        "TPU v5e",
        peak_flops=197e12,
        memory_bytes=15.75 * _GIB,
        memory_bandwidth=819e9,
        link_bandwidth=50e9,
        network_bandwidth=3.125e9,
        grid_dimensions=2,
        min_ring_extent=16,
        max_devices=256,
        kinds=("TPU v5 lite", "TPU v5e"),
        sources=(
            f"{_TPU_PAGES}v5e: 197 TFLOP/s, 16 GB, 819 GB/s, 4 links of 400 GB/s both ways, 6.4 Tbit/s "
            "of network for all 256 chips",
            f"{_RINGS}: a dimension of 16 is a ring",
        ),
    ),
    "v5p": Chip(
        "TPU v5p",
        peak_flops=459e12,
        memory_bytes=95.73 * _GIB,
        memory_bandwidth=2765e9,
        link_bandwidth=100e9,
        network_bandwidth=6.25e9,
        grid_dimensions=3,
        min_ring_extent=0,
        max_devices=8960,
        kinds=("TPU v5", "TPU v5p"),
        sources=(
            f"{_TPU_PAGES}v5p: 459 TFLOP/s, 95 GiB, 2765 GB/s, 6 links of 1200 GB/s both ways, 50 Gbit/s "
            "of network a chip",
            f"{_TPU_PAGES}v4: rings where all extents are multiples of 4",
        ),
    ),
    "v6e": Chip(
        "TPU v6e",
        peak_flops=918e12,
        memory_bytes=31.24 * _GIB,
        memory_bandwidth=1600e9,
        link_bandwidth=100e9,
        network_bandwidth=12.5e9,
        grid_dimensions=2,
        min_ring_extent=16,
        max_devices=256,
        kinds=("TPU v6 lite", "TPU v6e"),
        sources=(
            f"{_TPU_PAGES}v6e: 918 TFLOP/s, 32 GB, 1600 GB/s, 4 links of 800 GB/s both ways, 25.6 Tbit/s "
            "of network for 256 chips",
            f"{_RINGS}: a dimension of 16 is a ring",
        ),
    ),
    "h100": Chip(
        "NVIDIA H100",
        peak_flops=989.5e12,
        memory_bytes=80e9,
        memory_bandwidth=3350e9,
        link_bandwidth=450e9,
        network_bandwidth=50e9,
        grid_dimensions=0,
        min_ring_extent=0,
        max_devices=8,
        kinds=("NVIDIA H100 80GB HBM3",),
        sources=(
            "https://www.nvidia.com/en-us/data-center/h100/ (SXM): 1979 TFLOP/s with sparsity, so half "
            "without; 80 GB, 3.35 TB/s, NVLink of 900 GB/s both ways",
            "https://docs.nvidia.com/dgx/dgxh100-user-guide/introduction-to-dgxh100.html: 400 Gbit/s of "
            "network a GPU",
        ),
    ),
    "h200": Chip(
        "NVIDIA H200",
        peak_flops=989.5e12,
        memory_bytes=141e9,
        memory_bandwidth=4800e9,
        link_bandwidth=450e9,
        network_bandwidth=50e9,
        grid_dimensions=0,
        min_ring_extent=0,
        max_devices=8,
        kinds=("NVIDIA H200",),
        sources=(
            "https://www.nvidia.com/en-us/data-center/h200/ (SXM): 1979 TFLOP/s with sparsity, so half "
            "without; 141 GB, 4.8 TB/s, NVLink of 900 GB/s both ways",
            "https://docs.nvidia.com/dgx/dgxh100-user-guide/introduction-to-dgxh100.html (DGX H200): "
            "400 Gbit/s of network a GPU",
        ),
    ),
}


def chip_of(device_kind: str) -> Chip | None:
    """Return the figures of the chip with this name in JAX; None if it is not listed."""
    return next((chip for chip in CHIPS.values() if device_kind in chip.kinds), None)
