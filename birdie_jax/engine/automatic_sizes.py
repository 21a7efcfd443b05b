"""Choose sizes automatically, by rules that depend only on the configuration and the machine.

Every process of a run and `birdie_jax.plan` choose the same sizes. The sizes never change a batch.
"""

import functools
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from birdie_jax.config_sections import Config, ModelConfig
from birdie_jax.engine.chips import chip_of
from birdie_jax.models import build_model
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.vocabulary import padded_vocab_size

_GIB = 2**30
# float32: the parameter, its gradient and AdamW's two moments.
BYTES_PER_PARAMETER = 16
# The rest of the memory is for activations, gathered parameters and gradients of one part of a batch.
_STATE_SHARE = 0.5
# From the planned memory of one layer and the logits of the presets: docs/launch_presets.md.
_TOKENS_PER_GIB = 1024
_RESIDUAL_SHARE = 1 / 8
# The memory of other GPUs by `jax.Device.device_kind`, from their data sheets.
_OTHER_GPU_MEMORY = {
    "NVIDIA A100-SXM4-40GB": 40e9,
    "NVIDIA A100-PCIE-40GB": 40e9,
    "NVIDIA A100-SXM4-80GB": 80e9,
    "NVIDIA A100 80GB PCIe": 80e9,
    "NVIDIA H100 PCIe": 80e9,
}
_UNLISTED_DEVICE_MEMORY = 15.75 * _GIB


class Machine(NamedTuple):
    """The properties of the devices that the choice of sizes depends on.

    Attributes:
        platform: the platform of all devices: "cpu", "gpu" or "tpu".
        kind: the kind of device, such as "TPU v5 lite".
        devices: the number of devices.
        slices: the number of TPU slices, or of GPU hosts, that a network connects.
        ring: the number of devices in the smallest closed ring of links of a TPU slice; 1 if there is none.
    """

    platform: str
    kind: str
    devices: int
    slices: int
    ring: int = 1


class Choice(NamedTuple):
    """A size and its reason.

    Attributes:
        size: the value for the field.
        reason: a readable explanation: the rule with its figures.
    """

    size: int
    reason: str


def describe_machine(devices: Sequence[Any]) -> Machine:
    """Return the description of `devices`, which need not be attached."""
    slices = {getattr(device, "slice_index", 0) for device in devices}
    kind = devices[0].device_kind
    return Machine(devices[0].platform, kind, len(devices), len(slices), _smallest_ring(kind, devices))


def _smallest_ring(kind: str, devices: Sequence[Any]) -> int:
    """Return the extent of the smallest dimension of a TPU slice that closes to a ring; 1 if none does."""
    chip = chip_of(kind)
    if chip is None or chip.is_gpu or not hasattr(devices[0], "coords"):
        return 1
    extents = [max(along) + 1 for along in zip(*(device.coords for device in devices), strict=True)]
    extents = extents[: chip.grid_dimensions]
    return min((extent for extent in extents if chip.is_ring(extent, extents)), default=1)


def choose_fsdp(config: Config, vocab_size: int, machine: Machine) -> Choice:
    """Return for `mesh.fsdp` the smallest power of two that leaves half of the memory for activations.

    The size must divide `model.features`, and the devices of a slice that the axes `tensor` and `sequence`
    leave. If no size is large enough, the largest is returned. On a TPU, a size above 1 covers at least a
    whole ring of links if it can, because traffic uses a whole ring in both directions. The devices of a
    CPU share one memory, so the size is 1.

    Args:
        config: the configuration of the run, with sizes for `mesh.tensor` and `mesh.sequence`.
        vocab_size: the number of rows of the embedding table. 0: not known yet; `data.vocab_size` pieces
            are assumed.
        machine: the devices.
    """
    if machine.platform == "cpu":
        return Choice(1, "1 on a CPU, whose devices share one memory")
    parameters = count_parameters(config.model, vocab_size or padded_vocab_size(config.data.vocab_size))
    state_bytes = BYTES_PER_PARAMETER * parameters / config.mesh.tensor
    memory, described = _device_memory(machine)

    available = machine.devices // (machine.slices * config.mesh.tensor * config.mesh.sequence)
    sizes = [2**power for power in range(available.bit_length())]
    sizes = [size for size in sizes if available % size == config.model.features % size == 0] or [1]
    fitting = [size for size in sizes if state_bytes / size <= _STATE_SHARE * memory]
    size = fitting[0] if fitting else sizes[-1]
    # Traffic uses a whole ring in both directions, and a part of a ring in one.
    around = 1 < size < machine.ring and machine.ring in sizes
    size = machine.ring if around else size

    reason = (
        f"the smallest power of two with which parameters, gradients and optimizer state, "
        f"{BYTES_PER_PARAMETER} bytes for each of {parameters:,} parameters, take at most "
        f"{_STATE_SHARE:.0%} of a device's {described}: they take "
        f"{state_bytes / size / _GIB:.2f} GiB"
    )
    if around:
        reason += ", and around a whole ring of links"
    if not fitting:
        reason += ", and no larger one divides the devices and model.features"
    return Choice(size, reason)


@functools.cache
def count_parameters(config: ModelConfig, vocab_size: int) -> int:
    """Return the number of parameters of a model with an embedding table of `vocab_size` rows."""
    shapes = parameter_shapes(build_model(config, vocab_size))
    return sum(prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def choose_accumulation_steps(config: Config, row_shards: int, machine: Machine) -> Choice:
    """Return for `train.accumulation_steps` the smallest number of parts that keeps activations small.

    Fewer parts are better, because the devices sum their gradients once for each part.

    Args:
        config: the configuration of the run, with a size for `mesh.sequence`.
        row_shards: the number of parts into which the mesh divides the rows of a batch.
        machine: the devices.
    """
    memory, described = _device_memory(machine)
    model = config.model
    bytes_of_token = model.layers * model.features * jnp.dtype(model.residual_dtype or model.dtype).itemsize
    max_tokens = int(min(_TOKENS_PER_GIB * memory / _GIB, _RESIDUAL_SHARE * memory / bytes_of_token))
    rows = max(config.batching.rows // row_shards, 1)
    tokens_of_row = config.batching.length // config.mesh.sequence
    parts = [parts for parts in range(1, rows + 1) if rows % parts == 0]
    fitting = [size for size in parts if rows // size * tokens_of_row <= max_tokens]
    size = fitting[0] if fitting else parts[-1]
    return Choice(
        size,
        f"the fewest parts with which a device computes at most {max_tokens:,} tokens, or one row, at a "
        f"time: {rows // size} rows of {tokens_of_row:,}; {_TOKENS_PER_GIB:,} tokens for each GiB of a "
        f"device's {described}, and the residual streams of all layers may fill at most "
        f"{_RESIDUAL_SHARE:.1%} of it",
    )


def listed_memory(kind: str) -> int | float | None:
    """Return the memory of a kind of device, such as "TPU v5 lite", in bytes; None if it is not listed."""
    chip = chip_of(kind)
    return _OTHER_GPU_MEMORY.get(kind) if chip is None else chip.memory_bytes


def _device_memory(machine: Machine) -> tuple[int | float, str]:
    """Return the memory of a device in bytes, and a readable description."""
    listed = listed_memory(machine.kind)
    memory = listed or _UNLISTED_DEVICE_MEMORY
    assumed = "" if listed else " (assumed: this kind of device is not listed)"
    return memory, f"{memory / _GIB:.2f} GiB{assumed}"
