"""The instructions that a program executes, and how often: a walk from the entry through calls and loops.

Rules:
- the body of a `while` executes as often as its trip count;
- a device takes one branch of a `conditional`; the branch with the highest cost counts;
- a called computation executes once a call, also if the call is asynchronous or a custom call with the
  same operands;
- a fusion is one instruction; `flops` and `memory_traffic` read its contents;
- an asynchronous instruction counts at its `-start`, with the result shapes of its `-done`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from hlo_analysis.module import ArrayShape, Computation, HloModule, Instruction
from hlo_analysis.trip_counts import CallFrame, trip_count

Cost = tuple[float, ...]
BRANCHES = ("branch_computations", "true_computation", "false_computation")
CALLED = ("to_apply", "calls", "called_computations")


class ExecutedInstruction(NamedTuple):
    """An instruction that the program executes.

    Attributes:
        instruction: the instruction; never a call, a loop, a conditional or a `-done`.
        executions: the number of its executions in one call of the program.
        shapes: the array shapes of its result; for a `-start`, the result of its `-done`.
        operands: the array shapes that it reads.
        computation: the computation that contains it.
    """

    instruction: Instruction
    executions: int
    shapes: tuple[ArrayShape, ...]
    operands: tuple[ArrayShape, ...]
    computation: Computation


def executed_instructions(
    module: HloModule, cost: Callable[[ExecutedInstruction], Cost]
) -> list[ExecutedInstruction]:
    """Return the instructions that one call of a program executes.

    Args:
        module: the program.
        cost: the cost of all executions of an instruction. A conditional takes the branch whose costs add
            up to the largest tuple.

    Raises:
        UnknownTripCountError: the trip count of a loop is unknown; the message names the loop.
    """
    return list(_walk(module, CallFrame(module.entry), 1, cost))


def _walk(
    module: HloModule, frame: CallFrame, executions: int, cost: Callable[[ExecutedInstruction], Cost]
) -> Iterator[ExecutedInstruction]:
    computation = frame.computation
    for instruction in computation:
        opcode = instruction.opcode
        if opcode == "while":
            count = trip_count(module, frame, instruction)
            for called in called_frames(module, frame, instruction, ("body", "condition")):
                yield from _walk(module, called, executions * count, cost)
        elif opcode == "conditional":
            branches = [
                list(_walk(module, CallFrame(branch.computation), executions, cost))
                for branch in called_frames(module, frame, instruction, BRANCHES)
            ]
            yield from max(branches, key=lambda branch: _total(map(cost, branch)))
        elif opcode in ("call", "async-start") or is_call(module, computation, instruction):
            for called in called_frames(module, frame, instruction, CALLED):
                yield from _walk(module, called, executions, cost)
        elif not opcode.endswith(("-done", "-update")):
            yield ExecutedInstruction(
                instruction,
                executions,
                result_shapes(computation, instruction),
                computation.operand_shapes(instruction),
                computation,
            )


def called_frames(
    module: HloModule, frame: CallFrame, caller: Instruction, attributes: tuple[str, ...]
) -> list[CallFrame]:
    """Return the frames of the computations that an instruction's attributes name."""
    names = (name for attribute in attributes for name in caller.called_computations(attribute))
    return [CallFrame(module.computations[name], frame, caller) for name in names]


def is_call(module: HloModule, computation: Computation, instruction: Instruction) -> bool:
    """Return whether a custom call names one computation whose parameters are the call's operands."""
    names = instruction.called_computations("called_computations")
    if instruction.opcode != "custom-call" or len(names) != 1:
        return False
    parameters = module.computations[names[0]].parameters
    given = [computation.instructions[name].shapes for name in instruction.operands]
    return given == [parameters[number].shapes for number in sorted(parameters)]


def _total(costs: Iterable[Cost]) -> Cost:
    return tuple(map(sum, zip(*costs, strict=True)))


def result_shapes(computation: Computation, instruction: Instruction) -> tuple[ArrayShape, ...]:
    """Return the array shapes of a result; for a `-start`, of its `-done`."""
    current = instruction
    while current.opcode.endswith(("-start", "-update")):
        later = [
            user
            for user in computation.users[current.name]
            if user.opcode.endswith(("-done", "-update")) and user.operands[0] == current.name
        ]
        if not later:
            return instruction.shapes
        current = later[0]
    return current.shapes
