"""Trip counts of loops, from the text or from the start, step and limit of the loop's counter.

A compiler may move constants out of a loop into its state, and may unroll the loop. So the start, step and
limit are evaluated as affine expressions of the counter, through call frames. A call frame is a computation
with the call or loop that executes it.
"""

import re
from typing import NamedTuple

from hlo_analysis.module import Computation, HloModule, Instruction, changed_elements, loop_body

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_SAME_VALUE = ("copy", "bitcast", "convert", "reshape", "copy-start", "copy-done", "opt-barrier")
_INTEGERS = ("s32", "u32", "s64", "u64", "s8", "u8", "s16", "u16")


class UnknownTripCountError(ValueError):
    """The text does not determine the trip count of a loop."""


class CallFrame(NamedTuple):
    """A computation and the calls that lead to it.

    Attributes:
        computation: the executed computation.
        outer: the frame of the calling computation; None for the entry.
        caller: the instruction that calls it: a loop, a call or a fusion; None for the entry.
    """

    computation: Computation
    outer: "CallFrame | None" = None
    caller: Instruction | None = None


class Affine(NamedTuple):
    """The expression coefficient * counter + constant; a plain number has coefficient 0.

    Attributes:
        constant: the constant term.
        coefficient: the factor of the counter.
        counter: the index of the counter in the loop state; -1 for a plain number.
    """

    constant: int
    coefficient: int = 0
    counter: int = -1


def trip_count(module: HloModule, frame: CallFrame, loop: Instruction) -> int:
    """Return the number of times that a `while` executes its body.

    Args:
        module: the module of the loop.
        frame: the frame of the computation that contains the loop.
        loop: the `while` instruction.

    Raises:
        UnknownTripCountError: neither an attribute of the loop nor its counter determines the number.
    """
    known = _KNOWN.search(loop.attributes)
    if known is not None:
        return int(known.group(1))
    (condition,) = (module.computations[name] for name in loop.called_computations("condition"))
    found = _comparison(module, CallFrame(condition, frame, loop), condition.root)
    if found is not None:
        left, right, direction = found
        if left.coefficient == 0:
            left, right, direction = right, left, direction.translate(str.maketrans("LG", "GL"))
        start, step = _start_and_step(module, frame, loop, left.counter)
        if left.coefficient and not right.coefficient and start is not None and step is not None:
            first = left.coefficient * start.constant + left.constant
            count = _iterations(first, left.coefficient * step, right.constant, direction)
            if count is not None:
                return count
    raise UnknownTripCountError(
        f"loop {loop.name}: found neither known_trip_count nor a counter in its condition "
        f"{condition.name}; allowed: a loop with either"
    )


def _iterations(first: int, step: int, limit: int, direction: str) -> int | None:
    """Return the iterations of a counter from `first` by `step` while `counter direction limit` holds."""
    distance = limit - first
    if direction in ("LE", "GE"):
        distance += 1 if direction == "LE" else -1
    if direction == "NE" and step and distance % step == 0:
        return max(distance // step, 0)
    if (step > 0 and direction[0] == "L") or (step < 0 and direction[0] == "G"):
        return max(-(-distance // step), 0)
    return None


def _comparison(
    module: HloModule, frame: CallFrame, value: Instruction
) -> tuple[Affine, Affine, str] | None:
    """Return both sides of a comparison and its direction; the comparison can be in a fusion."""
    if value.opcode == "fusion":
        fused = module.fused_computation(value)
        return _comparison(module, CallFrame(fused, frame, value), fused.root)
    if value.opcode in _SAME_VALUE:
        return _comparison(module, frame, frame.computation.instructions[value.operands[0]])
    if value.opcode != "compare":
        return None
    left, right = (_evaluate(module, frame, name) for name in value.operands)
    if left is None or right is None:
        return None
    return left, right, str(value.attribute("direction"))


def _start_and_step(
    module: HloModule, frame: CallFrame, loop: Instruction, counter: int
) -> tuple[Affine | None, int | None]:
    body = loop_body(module, loop)
    if not 0 <= counter < len(body.root.operands):
        return None, None
    start = _evaluate_element(module, frame, loop.operands[0], counter)
    after = _evaluate(module, CallFrame(body, frame, loop), body.root.operands[counter])
    if start is None or start.coefficient or after is None:
        return None, None
    if (after.coefficient, after.counter) != (1, counter):
        return None, None
    return start, after.constant


def _evaluate(module: HloModule, frame: CallFrame, name: str) -> Affine | None:
    """Return an integer or an expression of the innermost loop's counter, or None for other values."""
    value = frame.computation.instructions[name]
    if value.opcode == "constant":
        is_integer = value.shapes[0].dtype in _INTEGERS and re.fullmatch(r"-?\d+", value.arguments)
        return Affine(int(value.arguments)) if is_integer else None
    if value.opcode in _SAME_VALUE:
        return _evaluate(module, frame, value.operands[0])
    if value.opcode in ("add", "subtract", "multiply"):
        left, right = (_evaluate(module, frame, operand) for operand in value.operands)
        return None if left is None or right is None else _combine(value.opcode, left, right)
    if value.opcode == "get-tuple-element":
        return _evaluate_element(module, frame, value.operands[0], value.tuple_index)
    if value.opcode == "fusion":
        fused = module.fused_computation(value)
        return _evaluate(module, CallFrame(fused, frame, value), fused.root.name)
    if value.opcode != "parameter" or frame.outer is None or frame.caller is None:
        return None
    if frame.caller.opcode == "while":
        # The parameter is the loop state, a tuple.
        return None
    return _evaluate(module, frame.outer, frame.caller.operands[int(value.arguments)])


def _evaluate_element(module: HloModule, frame: CallFrame, name: str, index: int) -> Affine | None:
    """Evaluate the element `index` of the tuple `name`, as `_evaluate` does."""
    value = frame.computation.instructions[name]
    if value.opcode == "tuple":
        return _evaluate(module, frame, value.operands[index])
    if value.opcode in _SAME_VALUE:
        return _evaluate_element(module, frame, value.operands[0], index)
    if value.opcode == "while":
        unchanged = index not in changed_elements(module, value)
        return _evaluate_element(module, frame, value.operands[0], index) if unchanged else None
    if value.opcode != "parameter" or frame.outer is None or frame.caller is None:
        return None
    if frame.caller.opcode != "while":
        return _evaluate_element(module, frame.outer, frame.caller.operands[int(value.arguments)], index)
    if index in changed_elements(module, frame.caller):
        return Affine(0, 1, index)
    before = _evaluate_element(module, frame.outer, frame.caller.operands[0], index)
    # The counter of an enclosing loop changes between executions of this loop.
    return before if before is not None and before.coefficient == 0 else None


def _combine(opcode: str, left: Affine, right: Affine) -> Affine | None:
    """Return the sum, difference or product of two expressions; None if not affine in one counter."""
    if left.coefficient and right.coefficient:
        return None
    if opcode == "multiply":
        number, expression = (left, right) if right.coefficient else (right, left)
        coefficient = number.constant * expression.coefficient
        return Affine(
            number.constant * expression.constant, coefficient, expression.counter if coefficient else -1
        )
    sign = 1 if opcode == "add" else -1
    coefficient = left.coefficient + sign * right.coefficient
    counter = left.counter if left.coefficient else right.counter
    return Affine(left.constant + sign * right.constant, coefficient, counter)
