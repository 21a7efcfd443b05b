"""The machines of the presets, as lists of absent devices."""

from typing import NamedTuple


class FakeDevice(NamedTuple):
    """The properties of a device that determine a mesh.

    Attributes:
        platform: see `jax.Device`.
        device_kind: see `jax.Device`.
        slice_index: the number of the TPU slice, or of the host of GPUs.
    """

    platform: str
    device_kind: str
    slice_index: int


# A TPU's name counts cores for v4 and v5p, and chips for v5e.
TPUS = {"v4-128": ("TPU v4", 64), "v5p-128": ("TPU v5", 64), "v5e-256": ("TPU v5 lite", 256)}
# The same slices by their names for gcloud's --accelerator-type.
ACCELERATOR_TYPES = {"v4-128": TPUS["v4-128"], "v5p-128": TPUS["v5p-128"], "v5litepod-256": TPUS["v5e-256"]}
GPU_KINDS = {"A100": "NVIDIA A100-SXM4-80GB", "H100": "NVIDIA H100 80GB HBM3", "H200": "NVIDIA H200"}
MACHINES = (*TPUS, *(f"{gpu}x{count}" for gpu in GPU_KINDS for count in (8, 16, 64)))


def devices_of(machine: str) -> list[FakeDevice]:
    """Return the devices of a machine, such as "v5p-128", or "H100x16" for 16 GPUs."""
    if machine in TPUS:
        kind, chips = TPUS[machine]
        return tpus(kind, chips)
    gpu, count = machine.split("x")
    return gpus(GPU_KINDS[gpu], int(count))


def tpus(kind: str, chips: int, slices: int = 1) -> list[FakeDevice]:
    return [FakeDevice("tpu", kind, index) for index in range(slices) for _ in range(chips)]


def gpus(kind: str, count: int, per_host: int = 8) -> list[FakeDevice]:
    return [FakeDevice("gpu", kind, index // per_host) for index in range(count)]


def cpus(count: int) -> list[FakeDevice]:
    return [FakeDevice("cpu", "cpu", 0)] * count
