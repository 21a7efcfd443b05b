"""Collectives of a compiled program: kind, axes of the mesh, and the bytes that each device sends.

Of `payload` bytes (the operand; of an all-gather the result) a device of a group of n sends, as on a ring,
which is the least that any algorithm on direct links needs:

    all-gather, reduce-scatter, all-to-all    (n - 1) / n * payload
    all-reduce                                2 (n - 1) / n * payload
    collective-permute                        payload

A TPU's compiler writes a reduce-scatter as an all-reduce fused with the slice that a device keeps of it; it
counts as what it is. A collective that goes on through several fusions counts once. What slices exchange
over the network is written as `send` and `recv` to the runtime, with the kind of the exchange beside them;
its groups are the devices at the same place of every slice.

Chan et al. 2007, "Collective communication: theory, practice, and experience", section 3.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from birdie_jax.planning.execution import Executed, operand_types
from birdie_jax.planning.program_text import COLLECTIVES, Computation, Instruction, Program
from birdie_jax.planning.replica_groups import Groups, MeshShape, across_slices, groups_of

_BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="(\w+)"')


class Collective(NamedTuple):
    """An exchange between devices that the program executes.

    Attributes:
        kind: one of `COLLECTIVES`.
        groups: who takes part.
        payload: bytes of the operand on a device, of an all-gather those of the result.
        times: how often in a step.
        name: of the instruction.
        source: where in the model it comes from.
    """

    kind: str
    groups: Groups
    payload: int
    times: int
    name: str
    source: str

    @property
    def sent(self) -> float:
        """Bytes that a device sends each time."""
        return sent_bytes(self.kind, self.payload, self.groups.size)


def sent_bytes(kind: str, payload: int, size: int) -> float:
    """Return the bytes that a device of a group of `size` sends on a ring."""
    if kind in ("collective-permute", "collective-broadcast"):
        return float(payload)
    share = (size - 1) / size
    return (2 if kind == "all-reduce" else 1) * share * payload


def collectives(
    program: Program, instructions: Iterable[Executed], mesh: MeshShape, slices: int = 1
) -> list[Collective]:
    """Return the collectives among what a program executes, those inside fusions too.

    Args:
        program: that they belong to.
        instructions: what it executes.
        mesh: devices along each axis.
        slices: outermost along the first of them.
    """
    found = []
    counted = set()
    for one in instructions:
        between = _BETWEEN_SLICES.search(one.instruction.attributes)
        if one.instruction.opcode == "send" and between is not None:
            found.append(_exchange_of_slices(one, between.group(1), mesh, slices))
        for computation, name in _within(program, one.computation, one.instruction.name):
            instruction = computation.instructions[name]
            kind = _kind(computation, instruction)
            groups = groups_of(instruction, mesh)
            channel = instruction.attribute("channel_id")
            if groups.size == 1:
                continue
            if computation is not one.computation and channel in program.channels_in_steps:
                if (one.computation.name, channel) in counted:
                    continue
                counted.add((one.computation.name, channel))
            types = one.types if instruction is one.instruction else instruction.types
            if kind != "all-gather":
                types = operand_types(computation, instruction)
            payload = sum(array.bytes for array in types)
            found.append(Collective(kind, groups, payload, one.times, name, instruction.source))
    return found


def _exchange_of_slices(one: Executed, kind: str, mesh: MeshShape, slices: int) -> Collective:
    kind = {"ONE_TO_ONE": "collective-permute"}.get(kind, kind.lower().replace("_", "-"))
    payload = one.operands[0].bytes * (slices if kind == "all-gather" else 1)
    instruction, groups = one.instruction, across_slices(mesh, slices)
    return Collective(kind, groups, payload, one.times, instruction.name, instruction.source)


def _kind(computation: Computation, instruction: Instruction) -> str:
    """Return the kind of a collective; an all-reduce of which only a slice is kept is a reduce-scatter."""
    kind = instruction.opcode.removesuffix("-start")
    users = computation.users[instruction.name]
    if kind == "all-reduce" and users and all(user.opcode == "dynamic-slice" for user in users):
        return "reduce-scatter"
    return kind


def _within(program: Program, computation: Computation, name: str) -> list[tuple[Computation, str]]:
    """Return the collectives that an instruction is or fuses, each with its computation."""
    instruction = computation.instructions[name]
    if instruction.opcode.removesuffix("-start") in COLLECTIVES:
        return [(computation, name)]
    if instruction.opcode != "fusion":
        return []
    found = []
    for called in instruction.called("calls"):
        inner = program.computations[called]
        for one in inner:
            found += _within(program, inner, one.name)
    return found
