"""How often loops run, where they do not say it themselves: from their counter's start, step and limit.

A compiler may move constants out of a loop, into the values that it hands on, and may take several turns at
once. So start, step and limit are computed as linear forms of one counter, through scopes: a computation,
and the call or loop that it is executed for.
"""

import re
from typing import NamedTuple

from birdie_jax.planning.program_text import Computation, Instruction, Program

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_SAME = ("copy", "bitcast", "convert", "reshape", "copy-start", "copy-done", "opt-barrier")
_INTEGERS = ("s32", "u32", "s64", "u64", "s8", "u8", "s16", "u16")


class UnknownTripCount(ValueError):  # noqa: N818 - the program's property, not a fault of the reader
    """A loop does not tell how often it runs."""


class Scope(NamedTuple):
    """A computation as it is executed.

    Attributes:
        computation: what is executed.
        outer: where it is called from; None for the entry.
        caller: the loop, call or fusion; None for the entry.
    """

    computation: Computation
    outer: "Scope | None" = None
    caller: Instruction | None = None


class Linear(NamedTuple):
    """factor * counter + constant; a plain number has factor 0.

    Attributes:
        constant: what is added.
        factor: of the counter.
        counter: number of the loop's value that it stands for.
    """

    constant: int
    factor: int = 0
    counter: int = -1


def trip_count(program: Program, scope: Scope, loop: Instruction) -> int:
    """Return how often the body of a `while` is executed.

    Args:
        program: that it belongs to.
        scope: that the loop stands in.
        loop: the `while`.

    Raises:
        UnknownTripCount: neither the loop itself nor its counter tells.
    """
    known = _KNOWN.search(loop.attributes)
    if known is not None:
        return int(known.group(1))
    (condition,) = (program.computations[name] for name in loop.called("condition"))
    found = _comparison(program, Scope(condition, scope, loop), condition.root)
    if found is not None:
        left, right, direction = found
        if left.factor == 0:
            left, right, direction = right, left, direction.translate(str.maketrans("LG", "GL"))
        start, step = _start_and_step(program, scope, loop, left.counter)
        if left.factor and not right.factor and start is not None and step is not None:
            first = left.factor * start.constant + left.constant
            turns = _turns(first, left.factor * step, right.constant, direction)
            if turns is not None:
                return turns
    raise UnknownTripCount(
        f"loop {loop.name}: neither known_trip_count nor a counter in its condition {condition.name} tells "
        "how often it runs"
    )


def changed_values(program: Program, loop: Instruction) -> set[int]:
    """Return the numbers of a loop's values that its body does not hand on as they are."""
    body = program.computations[loop.called("body")[0]]
    if body.root.opcode != "tuple":
        return set(range(len(body.root.types)))
    return {
        number
        for number, name in enumerate(body.root.operands)
        if _handed_on(body, body.instructions[name]) != number
    }


def _handed_on(body: Computation, value: Instruction) -> int | None:
    if value.opcode != "get-tuple-element" or value.operands[0] != body.parameters[0].name:
        return None
    return int(value.attribute("index"))


def _turns(first: int, step: int, limit: int, direction: str) -> int | None:
    """Return the turns of a counter that goes on while it compares so with a limit."""
    distance = limit - first
    if direction in ("LE", "GE"):
        distance += 1 if direction == "LE" else -1
    if direction == "NE" and step and distance % step == 0:
        return max(distance // step, 0)
    if (step > 0 and direction[0] == "L") or (step < 0 and direction[0] == "G"):
        return max(-(-distance // step), 0)
    return None


def _comparison(program: Program, scope: Scope, value: Instruction) -> tuple[Linear, Linear, str] | None:
    """Return both sides of a comparison, which may be fused, and its direction."""
    if value.opcode == "fusion":
        inner = program.computations[value.called("calls")[0]]
        return _comparison(program, Scope(inner, scope, value), inner.root)
    if value.opcode in _SAME:
        return _comparison(program, scope, scope.computation.instructions[value.operands[0]])
    if value.opcode != "compare":
        return None
    left, right = (_value(program, scope, name) for name in value.operands)
    if left is None or right is None:
        return None
    return left, right, str(value.attribute("direction"))


def _start_and_step(
    program: Program, scope: Scope, loop: Instruction, counter: int
) -> tuple[Linear | None, int | None]:
    body = program.computations[loop.called("body")[0]]
    if not 0 <= counter < len(body.root.operands):
        return None, None
    start = _element(program, scope, loop.operands[0], counter)
    after = _value(program, Scope(body, scope, loop), body.root.operands[counter])
    if start is None or start.factor or after is None or (after.factor, after.counter) != (1, counter):
        return None, None
    return start, after.constant


def _value(program: Program, scope: Scope, name: str) -> Linear | None:
    """Return a whole number, or a form of the counter of the innermost loop; None for anything else."""
    value = scope.computation.instructions[name]
    if value.opcode == "constant":
        is_number = value.types[0].dtype in _INTEGERS and re.fullmatch(r"-?\d+", value.arguments)
        return Linear(int(value.arguments)) if is_number else None
    if value.opcode in _SAME:
        return _value(program, scope, value.operands[0])
    if value.opcode in ("add", "subtract", "multiply"):
        left, right = (_value(program, scope, operand) for operand in value.operands)
        return None if left is None or right is None else _combined(value.opcode, left, right)
    if value.opcode == "get-tuple-element":
        return _element(program, scope, value.operands[0], int(value.attribute("index")))
    if value.opcode == "fusion":
        inner = program.computations[value.called("calls")[0]]
        return _value(program, Scope(inner, scope, value), inner.root.name)
    if value.opcode == "parameter" and scope.outer is not None and scope.caller.opcode != "while":
        return _value(program, scope.outer, scope.caller.operands[int(value.arguments)])
    return None


def _element(program: Program, scope: Scope, name: str, number: int) -> Linear | None:
    """Return an element of a tuple."""
    value = scope.computation.instructions[name]
    if value.opcode == "tuple":
        return _value(program, scope, value.operands[number])
    if value.opcode in _SAME:
        return _element(program, scope, value.operands[0], number)
    if value.opcode == "while":
        unchanged = number not in changed_values(program, value)
        return _element(program, scope, value.operands[0], number) if unchanged else None
    if value.opcode != "parameter" or scope.outer is None:
        return None
    if scope.caller.opcode != "while":
        return _element(program, scope.outer, scope.caller.operands[int(value.arguments)], number)
    if number in changed_values(program, scope.caller):
        return Linear(0, 1, number)
    before = _element(program, scope.outer, scope.caller.operands[0], number)
    # A counter of a loop around this one is not the same in all of its executions.
    return before if before is not None and before.factor == 0 else None


def _combined(opcode: str, left: Linear, right: Linear) -> Linear | None:
    if opcode == "multiply":
        if left.factor and right.factor:
            return None
        number, form = (left, right) if right.factor else (right, left)
        factor = number.constant * form.factor
        return Linear(number.constant * form.constant, factor, form.counter if factor else -1)
    if left.factor and right.factor:
        return None
    sign = 1 if opcode == "add" else -1
    factor = left.factor + sign * right.factor
    counter = left.counter if left.factor else right.counter
    return Linear(left.constant + sign * right.constant, factor, counter)
