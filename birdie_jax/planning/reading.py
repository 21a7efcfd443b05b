"""What a compiled step does, read from its text: FLOPs, bytes, collectives."""

from typing import NamedTuple

from birdie_jax.planning.collectives import Collective, collectives
from birdie_jax.planning.execution import Executed, executed
from birdie_jax.planning.memory import activation_bytes
from birdie_jax.planning.products import Flops, flops_of
from birdie_jax.planning.program_text import parse_program
from birdie_jax.planning.replica_groups import MeshShape
from birdie_jax.planning.traffic import bytes_moved


class Heavy(NamedTuple):
    """An instruction that moves many bytes.

    Attributes:
        name: in the compiled text.
        opcode: of it.
        bytes: that it moves in a step.
        flops: of its matrix products in a step.
        times: how often it is executed.
        source: where in the model it comes from.
    """

    name: str
    opcode: str
    bytes: float
    flops: float
    times: int
    source: str


class Reading(NamedTuple):
    """What one device does in a step.

    Attributes:
        flops: of products and of all else.
        bytes_moved: between the chip and its main memory.
        collectives: each instruction once.
        activation_bytes: kept for the backward pass.
        heaviest: instructions by the bytes that they move, the heaviest first.
    """

    flops: Flops
    bytes_moved: float
    collectives: list[Collective]
    activation_bytes: int
    heaviest: list[Heavy]


def read_program(text: str, mesh: MeshShape, *, slices: int = 1, heaviest: int = 10) -> Reading:
    """Return what the program `text` does, as `compiled.as_text()` gives it.

    Args:
        text: of the compiled program.
        mesh: devices along each axis.
        slices: outermost along the first of them.
        heaviest: how many instructions to name.

    Raises:
        UnknownTripCount: a loop does not tell how often it runs.
    """
    program = parse_program(text)

    def weigh(one: Executed) -> tuple[float, float]:
        return flops_of(program, one).products * one.times, bytes_moved(program, one) * one.times

    instructions = executed(program, weigh)
    flops, moved, heavy = Flops(0.0, 0.0), 0.0, []
    for one in instructions:
        own, bytes_ = flops_of(program, one), bytes_moved(program, one) * one.times
        own = Flops(own.products * one.times, own.elementwise * one.times)
        flops += own
        moved += bytes_
        instruction = one.instruction
        heavy.append(
            Heavy(instruction.name, instruction.opcode, bytes_, own.products, one.times, instruction.source)
        )
    return Reading(
        flops,
        moved,
        collectives(program, instructions, mesh, slices),
        activation_bytes(program),
        sorted(heavy, key=lambda one: -one.bytes)[:heaviest],
    )
