"""A plan: what a train step of a configuration asks of every device of a topology."""

import os
from collections import defaultdict
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from birdie_jax.config import Config
from birdie_jax.planning.bounds import Bounds, make_bounds
from birdie_jax.planning.collectives import Collective
from birdie_jax.planning.compilation import CompiledStep, compile_step
from birdie_jax.planning.memory import state_bytes
from birdie_jax.planning.model_flops import model_flops_per_token
from birdie_jax.planning.reading import Reading, read_program
from birdie_jax.planning.topology import Topology


class DeviceBytes(NamedTuple):
    """Bytes that a step needs on one device; None = not known, of a program that was refused.

    Attributes:
        parameters: of the model.
        optimizer: of its state.
        other_state: of the bandit and of the step.
        activations: kept for the backward pass.
        temporaries: everything else that lives only during the step, gradients included.
        batch: what the step reads besides the state, results that take the place of nothing, and code.
        total: of all; a refused program's is what its compiler said.
        available: that a device has.
    """

    parameters: int
    optimizer: int
    other_state: int
    activations: int | None
    temporaries: int | None
    batch: int | None
    total: float
    available: float


class Exchange(NamedTuple):
    """Collectives of one kind along the same axes.

    Attributes:
        kind: such as "all-gather".
        axes: of the mesh, such as "fsdp" or "data*fsdp".
        devices: of a group.
        times: executed in a step.
        payload_bytes: of a device in a step.
        sent_bytes: that a device sends in a step.
    """

    kind: str
    axes: str
    devices: int
    times: int
    payload_bytes: float
    sent_bytes: float


@dataclass(frozen=True)
class Plan:
    """What a step of a run asks of one device, and how fast it could be.

    Attributes:
        topology: that it is for.
        mesh: devices along each axis.
        rows: of the global batch.
        length: tokens of a row.
        vocab_size: rows of the embedding table.
        bytes_per_device: by what they hold.
        reading: of the compiled program; None if it was refused.
        exchanges: collectives summed up by kind and axes.
        model_flops: of a step of all devices, however it is computed.
        bounds: on the time of a step; None where the program was refused or no figures are known.
        compile_seconds: that lowering and compiling took.
    """

    topology: Topology
    mesh: dict[str, int]
    rows: int
    length: int
    vocab_size: int
    bytes_per_device: DeviceBytes
    reading: Reading | None
    exchanges: list[Exchange]
    model_flops: float
    bounds: Bounds | None
    compile_seconds: float

    @property
    def fits(self) -> bool:
        """Whether a device has the memory that the step needs."""
        return self.bytes_per_device.total <= self.bytes_per_device.available

    @property
    def devices(self) -> int:
        """Devices of the mesh."""
        return prod(self.mesh.values())

    @property
    def row_shards(self) -> int:
        """Parts that the rows of a batch are divided into."""
        return self.mesh["data"] * self.mesh["fsdp"]

    def tokens_per_second(self, step_seconds: float) -> float:
        """Return the positions of rows that all devices compute in a second."""
        return self.rows * self.length / step_seconds

    def mfu(self, step_seconds: float) -> float:
        """Return the share of the chips' peak that the model's FLOPs take; 1 where they take more."""
        return min(1.0, self.model_flops / (step_seconds * self.devices * self.topology.chip.peak_flops))


def make_plan(config: Config, vocab_size: int, topology: Topology) -> Plan:
    """Compile the train step of `config` for `topology` and tell what it asks for.

    Raises:
        ConfigError: devices, rows or model cannot be divided so.
        UnknownTripCount: a loop of the program does not tell how often it runs.
    """
    step = compile_step(config, vocab_size, topology.devices)
    mesh = dict(step.mesh.shape)
    reading = bounds = None
    exchanges: list[Exchange] = []
    if step.executable is not None:
        reading = read_program(step.text, mesh, slices=topology.slices)
        exchanges = _summed(reading.collectives)
        if topology.chip is not None:
            places = [topology.place(device) for device in step.mesh.devices.flat]
            bounds = make_bounds(
                topology, places, reading.flops.products, reading.bytes_moved, reading.collectives
            )
    tokens = config.batching.rows * config.batching.length
    per_token = model_flops_per_token(config.model, vocab_size, config.batching.length)
    return Plan(
        topology,
        mesh,
        config.batching.rows,
        config.batching.length,
        vocab_size,
        _device_bytes(step, reading, topology),
        reading,
        exchanges,
        per_token * tokens,
        bounds,
        step.seconds,
    )


def _device_bytes(step: CompiledStep, reading: Reading | None, topology: Topology) -> DeviceBytes:
    state = state_bytes(step.state)
    if step.executable is None or reading is None:
        return DeviceBytes(*state, None, None, None, step.refused.needed, step.refused.available)
    memory = step.executable.memory_analysis()
    activations = min(reading.activation_bytes, memory.temp_size_in_bytes)
    beside = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.generated_code_size_in_bytes
    )
    return DeviceBytes(
        *state,
        activations=activations,
        temporaries=memory.temp_size_in_bytes - activations,
        batch=beside - sum(state),
        total=beside + memory.temp_size_in_bytes,
        available=_available(topology),
    )


def _available(topology: Topology) -> float:
    """Return the bytes that a device has; those of the CPU share the machine's memory."""
    if topology.chip is not None:
        return topology.chip.memory_bytes
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / len(topology.devices)


def _summed(collectives: list[Collective]) -> list[Exchange]:
    found: dict[tuple[str, str, int], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for one in collectives:
        total = found[one.kind, one.groups.label, one.groups.size]
        for place, value in enumerate((1, one.payload, one.sent)):
            total[place] += value * one.times
    exchanges = [Exchange(*key, int(times), payload, sent) for key, (times, payload, sent) in found.items()]
    return sorted(exchanges, key=lambda one: -one.sent_bytes)
