"""What a compiled program executes, and how often: the walk from its entry through its calls and loops.

Rules:
- the body of a `while` is executed as often as `trip_counts` tells;
- of a `conditional` the branch that multiplies most is taken, or among equals the one of most bytes: each
  device takes one of them;
- computations that are called, also asynchronously or by a custom call with the same arguments, are
  executed once a call; what is fused is one instruction, and what is inside of it is looked at by those who
  count (`products`, `traffic`);
- an asynchronous instruction counts where it starts, with the result type of where it ends.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from birdie_jax.planning.program_text import ArrayType, Computation, Instruction, Program
from birdie_jax.planning.trip_counts import Scope, trip_count


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
    return list(_walk(program, Scope(program.entry), 1, weigh))


def _walk(program: Program, scope: Scope, times: int, weigh: Callable) -> Iterator[Executed]:
    computation = scope.computation
    for instruction in computation:
        opcode = instruction.opcode

        def inside(*roles: str, caller: Instruction = instruction) -> list[Scope]:
            names = (name for role in roles for name in caller.called(role))
            return [Scope(program.computations[name], scope, caller) for name in names]

        if opcode == "while":
            turns = trip_count(program, scope, instruction)
            for part in inside("body", "condition"):
                yield from _walk(program, part, times * turns, weigh)
        elif opcode == "conditional":
            branches = [
                list(_walk(program, branch._replace(outer=None, caller=None), times, weigh))
                for branch in inside("branch_computations", "true_computation", "false_computation")
            ]
            yield from max(branches, key=lambda branch: _total(map(weigh, branch)))
        elif opcode in ("call", "async-start") or _stands_for_its_computation(
            program, computation, instruction
        ):
            for part in inside("to_apply", "calls", "called_computations"):
                yield from _walk(program, part, times, weigh)
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
