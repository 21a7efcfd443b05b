"""Collectives of a compiled program: kind, mesh axes, and the bytes that each device sends.

`payload` is the bytes of the operand, or of the result for an all-gather. On a ring, a device in a group of
n sends the following bytes, the least of any algorithm on direct links:

    all-gather, reduce-scatter, all-to-all    (n - 1) / n * payload
    all-reduce                                2 (n - 1) / n * payload
    collective-permute                        payload

The TPU compiler writes a reduce-scatter as an all-reduce fused with a slice of its result. This counts as a
reduce-scatter. A collective that runs as parts of several fusions counts once. TPU slices exchange data
over the network with a `send` and a `recv` to the runtime, which have the kind of the transfer as an
attribute. The groups of such a transfer are the devices at the same position of every slice.

Chan et al. 2007, "Collective communication: theory, practice, and experience", section 3.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hlo_analysis.module import COLLECTIVE_OPCODES, Computation, HloModule, Instruction, total_bytes
from hlo_analysis.replica_groups import MeshShape, ReplicaGroups, parse_replica_groups, slice_groups
from hlo_analysis.schedule import ExecutedInstruction

_TRANSFER_BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="(\w+)"')


class Collective(NamedTuple):
    """A collective that the program executes.

    Attributes:
        kind: the kind, one of `COLLECTIVE_OPCODES`.
        groups: the groups of devices that exchange data.
        payload_bytes: the bytes of the operand on one device; for an all-gather, of the result.
        executions: the number of executions in one step.
        name: the name of the instruction.
        op_name: the place in the JAX program that the instruction comes from.
    """

    kind: str
    groups: ReplicaGroups
    payload_bytes: int
    executions: int
    name: str
    op_name: str

    @property
    def sent_bytes(self) -> float:
        """The bytes that one device sends in one execution."""
        return ring_sent_bytes(self.kind, self.payload_bytes, self.groups.size)


def ring_sent_bytes(kind: str, payload_bytes: int, size: int) -> float:
    """Return the bytes that one device of a group of `size` sends on a ring."""
    if kind in ("collective-permute", "collective-broadcast"):
        return float(payload_bytes)
    share = (size - 1) / size
    return (2 if kind == "all-reduce" else 1) * share * payload_bytes


def find_collectives(
    module: HloModule, instructions: Iterable[ExecutedInstruction], mesh_shape: MeshShape, slices: int = 1
) -> list[Collective]:
    """Return the collectives among executed instructions, including those inside fusions.

    Args:
        module: the module of the instructions.
        instructions: the instructions that the program executes.
        mesh_shape: the number of devices along each mesh axis.
        slices: the number of TPU slices; they are the outermost part of the first axis.
    """
    found = []
    counted = set()
    for executed in instructions:
        for collective, channel in collectives_of(module, executed, mesh_shape, slices):
            if channel is None or (executed.computation.name, channel) not in counted:
                found.append(collective)
            if channel is not None:
                counted.add((executed.computation.name, channel))
    return found


def collectives_of(
    module: HloModule, executed: ExecutedInstruction, mesh_shape: MeshShape, slices: int
) -> Iterator[tuple[Collective, str | None]]:
    """Yield the collectives that an instruction is or fuses.

    Each comes with the channel of the fusions that run it in parts, or None if the instruction runs the
    whole collective.
    """
    transfer = _TRANSFER_BETWEEN_SLICES.search(executed.instruction.attributes)
    if executed.instruction.opcode == "send" and transfer is not None:
        yield _slice_transfer(executed, transfer.group(1), mesh_shape, slices), None
    for computation, instruction in _contained(module, executed.computation, executed.instruction):
        groups = parse_replica_groups(instruction, mesh_shape)
        if groups.size == 1:
            continue
        channel = instruction.attribute("channel_id")
        is_part = computation is not executed.computation and channel in module.async_fusion_channels
        kind = _kind(computation, instruction)
        if kind != "all-gather":
            shapes = computation.operand_shapes(instruction)
        else:
            shapes = executed.shapes if instruction is executed.instruction else instruction.shapes
        collective = Collective(
            kind, groups, total_bytes(shapes), executed.executions, instruction.name, instruction.op_name
        )
        yield collective, channel if is_part else None


def _slice_transfer(
    executed: ExecutedInstruction, transfer_type: str, mesh_shape: MeshShape, slices: int
) -> Collective:
    instruction = executed.instruction
    kind = {"ONE_TO_ONE": "collective-permute"}.get(transfer_type, transfer_type.lower().replace("_", "-"))
    payload_bytes = executed.operands[0].bytes * (slices if kind == "all-gather" else 1)
    groups = slice_groups(mesh_shape, slices)
    return Collective(
        kind, groups, payload_bytes, executed.executions, instruction.name, instruction.op_name
    )


def _kind(computation: Computation, instruction: Instruction) -> str:
    """Return the kind of a collective; an all-reduce that keeps only a slice is a reduce-scatter."""
    kind = instruction.opcode.removesuffix("-start")
    users = computation.users[instruction.name]
    if kind == "all-reduce" and users and all(user.opcode == "dynamic-slice" for user in users):
        return "reduce-scatter"
    return kind


def _contained(
    module: HloModule, computation: Computation, instruction: Instruction
) -> list[tuple[Computation, Instruction]]:
    """Return the collectives that an instruction is or fuses, each with its computation."""
    if instruction.opcode.removesuffix("-start") in COLLECTIVE_OPCODES:
        return [(computation, instruction)]
    if instruction.opcode != "fusion":
        return []
    found = []
    for name in instruction.called_computations("calls"):
        fused = module.computations[name]
        for inner in fused:
            found += _contained(module, fused, inner)
    return found
