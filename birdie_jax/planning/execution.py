"""What a compiled program executes, and how often: the walk from its entry through its calls and loops.

Rules:
- the body of a `while` is executed as often as its `known_trip_count` tells, or else as the one integer
  constant of a condition `i < constant`; a loop that tells neither is refused;
- of a `conditional` the branch that multiplies most is taken, or among equals the one of most bytes: each
  device takes one of them;
- computations that are called, also asynchronously or by a custom call with the same arguments, are executed once a call; what is fused is one
  instruction, and what is inside of it is looked at by those who count (`products`, `traffic`);
- an asynchronous instruction counts where it starts, with the result type of where it ends.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from birdie_jax.planning.program_text import ArrayType, Computation, Instruction, Program

_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_DIRECTION = re.compile(r"direction=(LT|LE|GT|GE|NE)")


class UnknownTripCount(ValueError):  # noqa: N818 - the program's property, not a fault of the reader
    """A loop does not tell how often it runs."""


class Executed(NamedTuple):
    """An instruction that the program executes.

    Attributes:
        instruction: a fusion, a kernel, a collective or any other that is not only a name for data.
        times: how often in one call of the program.
        types: arrays of its result, also where it starts asynchronously.
        operands: arrays that it reads.
        computation: that it stands in.
    """

    instruction: Instruction
    times: int
    types: tuple[ArrayType, ...]
    operands: tuple[ArrayType, ...]
    computation: Computation


def executed(program: Program, weigh: Callable[[Executed], tuple[float, ...]]) -> list[Executed]:
    """Return everything that one call of `program` executes.

    Args:
        program: to walk through.
        weigh: what an instruction costs; of a conditional's branches the one that costs most is taken.

    Raises:
        UnknownTripCount: of a loop; the message names it.
    """
    return list(_walk(program, program.entry, 1, weigh))


def _walk(program, computation, times, weigh) -> Iterator[Executed]:
    for instruction in computation:
        opcode = instruction.opcode
        if opcode == "while":
            turns = trip_count(program, instruction)
            for role in ("body", "condition"):
                (name,) = instruction.called(role)
                yield from _walk(program, program.computations[name], times * turns, weigh)
        elif opcode == "conditional":
            branches = [
                list(_walk(program, program.computations[name], times, weigh))
                for role in ("branch_computations", "true_computation", "false_computation")
                for name in instruction.called(role)
            ]
            yield from max(branches, key=lambda branch: _total(map(weigh, branch)))
        elif opcode in ("call", "async-start") or _stands_for_its_computation(
            program, computation, instruction
        ):
            for role in ("to_apply", "calls", "called_computations"):
                for name in instruction.called(role):
                    yield from _walk(program, program.computations[name], times, weigh)
        elif not opcode.endswith(("-done", "-update")):
            yield Executed(
                instruction,
                times,
                _result_types(computation, instruction),
                operand_types(computation, instruction),
                computation,
            )


def _stands_for_its_computation(
    program: Program, computation: Computation, instruction: Instruction
) -> bool:
    """Return whether a custom call names one computation that takes just what the call is given."""
    names = instruction.called("called_computations")
    if instruction.opcode != "custom-call" or len(names) != 1:
        return False
    parameters = program.computations[names[0]].parameters
    given = [computation.instructions[name].types for name in instruction.operands]
    return given == [parameters[number].types for number in sorted(parameters)]


def _total(costs):
    return tuple(map(sum, zip(*costs, strict=True)))


def operand_types(computation: Computation, instruction: Instruction) -> tuple[ArrayType, ...]:
    """Return the arrays that an instruction reads, each once."""
    names = dict.fromkeys(instruction.operands)
    return tuple(kind for name in names for kind in computation.instructions[name].types)


def _result_types(computation: Computation, instruction: Instruction) -> tuple[ArrayType, ...]:
    """Return the result's arrays; of what starts here, those that its `-done` has."""
    current = instruction
    while current.opcode.endswith(("-start", "-update")):
        later = [
            user
            for user in computation.users[current.name]
            if user.opcode.endswith(("-done", "-update")) and user.operands[0] == current.name
        ]
        if not later:
            return instruction.types
        current = later[0]
    return current.types


def trip_count(program: Program, loop: Instruction) -> int:
    """Return how often the body of a `while` is executed.

    Raises:
        UnknownTripCount: nothing tells.
    """
    known = _TRIP_COUNT.search(loop.attributes)
    if known is not None:
        return int(known.group(1))
    (name,) = loop.called("condition")
    bounds = _constants_compared(program, program.computations[name])
    if len(bounds) != 1:
        raise UnknownTripCount(
            f"loop {loop.name}: neither known_trip_count nor one constant in its condition {name} "
            f"tells how often it runs; found constants {sorted(bounds)}"
        )
    return bounds.pop()


def _constants_compared(program: Program, condition: Computation) -> set[int]:
    """Return the integer constants that a condition `i < constant` is made of, with `i` from 0."""
    found, compares = set(), 0
    for instruction in condition:
        if instruction.opcode == "constant" and instruction.types[0].dtype in ("s32", "u32", "s64"):
            found.add(int(instruction.arguments))
        direction = _DIRECTION.search(instruction.attributes)
        if instruction.opcode == "compare" and direction is not None:
            compares += direction.group(1) in ("LT", "GT")
        for name in instruction.called("calls"):
            inner = program.computations[name]
            found |= _constants_compared(program, inner)
            compares += sum("direction=LT" in one.attributes for one in inner)
    return found if compares else set()
