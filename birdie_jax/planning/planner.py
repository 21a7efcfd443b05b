"""A plan: the memory, work and time of a train step on every device of a topology."""

import os
from collections import defaultdict
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from birdie_jax.engine.memory_check import device_memory
from birdie_jax.planning.bounds import StepBounds, rates_of, step_bounds
from birdie_jax.planning.compilation import CompiledProgram, compile_step, program_bytes
from birdie_jax.planning.model_flops import StateBytes, model_flops_per_token, state_bytes
from birdie_jax.planning.topology import Topology
from birdie_jax.resolve import ResolvedRun
from hlo_analysis import Collective, OutOfMemory, StepCosts, Transfer, read_step_costs


class DeviceBytes(NamedTuple):
    """The bytes that a step needs on one device; None: unknown, for a refused program.

    Attributes:
        parameters: the bytes of the model's parameters.
        optimizer: the bytes of the optimizer's state.
        other_state: the bytes of the bandit's state and the step.
        activations: the bytes kept for the backward pass.
        temporaries: the bytes of all other arrays that exist only during the step, including gradients.
        batch: the bytes of the inputs other than the state, of results that reuse no argument's memory, and
            of code.
        total: the sum; for a refused program, the bytes that its compiler reports.
        available: the bytes that a device has.
    """

    parameters: int
    optimizer: int
    other_state: int
    activations: int | None
    temporaries: int | None
    batch: int | None
    total: int | float
    available: int | float


class CollectiveTotal(NamedTuple):
    """The collectives of one kind along the same mesh axes, summed over a step.

    Attributes:
        kind: the kind, such as "all-gather".
        axes: the mesh axes, such as "fsdp" or "data*fsdp".
        devices: the number of devices in a group.
        executions: the number of executions in a step.
        payload_bytes: the payload of one device in a step.
        sent_bytes: the bytes that one device sends in a step.
        seconds: the seconds on links in a step; 0 if the figures of the chip are unknown.
        exposed_seconds: the seconds that the device waits, in the order of the compiled program.
        behind: the place in the JAX program of the longest overlapping instruction; "" for none.
    """

    kind: str
    axes: str
    devices: int
    executions: int
    payload_bytes: float
    sent_bytes: float
    seconds: float = 0.0
    exposed_seconds: float = 0.0
    behind: str = ""


@dataclass(frozen=True)
class RunPlan:
    """The needs of a step on one device, and the bounds on its time.

    Attributes:
        topology: the topology of the plan.
        mesh_shape: the number of devices along each mesh axis.
        rows: the number of rows in the global batch.
        length: the number of tokens in a row.
        vocab_size: the number of rows in the embedding table.
        bytes_per_device: the bytes of one device by content.
        costs: the costs of the compiled step; None if it was refused.
        collectives: the collectives, summed by kind and axes.
        model_flops: the model FLOPs of a step on all devices, without recomputation.
        bounds: the lower bounds on the time of a step; None if the step was refused, or the figures of the
            chip are unknown.
        compile_seconds: the time of lowering and compiling.
        num_steps: the number of steps of the run; None if only the data determine it, as for epochs.
    """

    topology: Topology
    mesh_shape: dict[str, int]
    rows: int
    length: int
    vocab_size: int
    bytes_per_device: DeviceBytes
    costs: StepCosts | None
    collectives: list[CollectiveTotal]
    model_flops: float
    bounds: StepBounds | None
    compile_seconds: float
    num_steps: int | None = None

    @property
    def fits(self) -> bool:
        """Whether a device has the memory that the step needs."""
        return self.bytes_per_device.total <= self.bytes_per_device.available

    @property
    def devices(self) -> int:
        """The number of devices of the mesh."""
        return prod(self.mesh_shape.values())

    @property
    def row_shards(self) -> int:
        """The number of parts that the rows of a batch are divided into."""
        return self.mesh_shape["data"] * self.mesh_shape["fsdp"]

    def tokens_per_second(self, step_seconds: float) -> float:
        """Return the tokens, including padding, that all devices compute per second."""
        return self.rows * self.length / step_seconds

    def hours(self) -> dict[str, float] | None:
        """Return the hours of all steps at the bound with everything overlapped, and at half its speed.

        Returns None if the number of steps or the bound is unknown.
        """
        if self.bounds is None or self.num_steps is None:
            return None
        bound = self.num_steps * self.bounds.overlapped / 3600
        return {"at the bound": bound, "at half its speed": 2 * bound}

    def mfu(self, step_seconds: float) -> float:
        """Return the model's FLOPs as a share of the chips' peak, at most 1."""
        peak_flops = self.devices * self.topology.known_chip.peak_flops
        return min(1.0, self.model_flops / (step_seconds * peak_flops))


def plan_run(run: ResolvedRun, topology: Topology) -> RunPlan:
    """Compile the train step of a run for the devices of `topology` and return its plan.

    Raises:
        UnknownTripCountError: a loop of the step has an unknown trip count.
    """
    config, step = run.config, compile_step(run)
    mesh_shape = dict(step.mesh.shape)
    state = state_bytes(step.state)
    costs = bounds = None
    if isinstance(step.outcome, OutOfMemory):
        device_bytes = _refused_bytes(state, step.outcome)
    else:
        locations = [topology.location(device) for device in step.mesh.devices.flat]
        rates = None if topology.chip is None else rates_of(topology, locations)
        costs = read_step_costs(step.outcome.hlo_text, mesh_shape, slices=topology.slices, rates=rates)
        device_bytes = _compiled_bytes(state, step.outcome, costs, topology)
        bounds = None if topology.chip is None else step_bounds(topology, locations, costs)
    tokens = config.batching.rows * config.batching.length
    loss_positions = None if config.finetune.stages else run.max_loss_positions
    flops_per_token = model_flops_per_token(
        config.model, run.vocab_size, config.batching.length, loss_positions
    )
    return RunPlan(
        topology=topology,
        mesh_shape=mesh_shape,
        rows=config.batching.rows,
        length=config.batching.length,
        vocab_size=run.vocab_size,
        bytes_per_device=device_bytes,
        costs=costs,
        collectives=_add_up(costs) if costs is not None else [],
        model_flops=flops_per_token * tokens,
        bounds=bounds,
        compile_seconds=step.seconds,
        num_steps=None if config.finetune.stages else config.train.num_steps,
    )


def _refused_bytes(state: StateBytes, refusal: OutOfMemory) -> DeviceBytes:
    return DeviceBytes(*state, None, None, None, refusal.needed, refusal.available)


def _compiled_bytes(
    state: StateBytes, program: CompiledProgram, costs: StepCosts, topology: Topology
) -> DeviceBytes:
    memory = program_bytes(program)
    activations = min(costs.activation_bytes, memory.temporaries)
    return DeviceBytes(
        *state,
        activations=activations,
        temporaries=memory.temporaries - activations,
        batch=memory.others - sum(state),
        total=memory.others + memory.temporaries,
        available=_available_bytes(topology),
    )


def _available_bytes(topology: Topology) -> float:
    """Return the bytes that a device has; CPU devices share the memory of the machine."""
    first = topology.devices[0]
    if topology.chip is not None:
        return topology.chip.memory_bytes
    if first.platform != "cpu":
        return device_memory(first) or float("inf")
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / len(topology.devices)


def _add_up(costs: StepCosts) -> list[CollectiveTotal]:
    """Return the totals by kind, axes and group size; those with the most sent bytes come first."""
    by_group: dict[tuple[str, str, int], list[Collective]] = defaultdict(list)
    for collective in costs.collectives:
        by_group[_group(collective)].append(collective)
    transfers: dict[tuple[str, str, int], list[Transfer]] = defaultdict(list)
    for transfer in costs.timeline.transfers if costs.timeline is not None else ():
        transfers[_group(transfer.collective)].append(transfer)
    totals = [
        CollectiveTotal(
            *group,
            executions=sum(one.executions for one in members),
            payload_bytes=sum((float(one.payload_bytes * one.executions) for one in members), start=0.0),
            sent_bytes=sum((one.sent_bytes * one.executions for one in members), start=0.0),
            seconds=sum((one.seconds for one in transfers[group]), start=0.0),
            exposed_seconds=sum((one.exposed_seconds for one in transfers[group]), start=0.0),
            behind=_longest(transfers[group]),
        )
        for group, members in by_group.items()
    ]
    return sorted(totals, key=lambda total: -total.sent_bytes)


def _group(collective: Collective) -> tuple[str, str, int]:
    return collective.kind, collective.groups.label, collective.groups.size


def _longest(transfers: list[Transfer]) -> str:
    """Return the place that overlaps longest with collectives; "" if none does."""
    seconds: dict[str, float] = defaultdict(float)
    for transfer in transfers:
        for place, meanwhile in transfer.behind.items():
            seconds[place] += meanwhile
    return max(seconds, key=lambda place: seconds[place], default="")
