"""Bytes that instructions move between a chip and its main memory.

An instruction, a fusion as a whole, reads each operand once and writes its result once. Exceptions:
- what only gives data a name, or starts a loop, moves nothing;
- arrays that the layout puts into the chip's scratch memory move nothing; who brings them there has read
  them;
- of an operand that is only sliced or gathered from, also inside a fusion, what is taken counts;
- an update of a slice in place reads and writes the update alone; a scatter its updates;
- what a fusion only hands on moves nothing; of a collective that goes on through several fusions the first
  one moves operand and result.
A matrix product that reads an operand more than once, since it does not fit the chip, counts it once: the
sum is a lower bound, as the bounds made of it have to be. Padding of layouts does not count.
"""

from birdie_jax.planning.execution import Executed
from birdie_jax.planning.program_text import (
    COLLECTIVES,
    ENDS_STEPS,
    STARTS_STEPS,
    ArrayType,
    Computation,
    Instruction,
    Program,
)

# fmt: off
_NAMES_ONLY = frozenset((
    "add-dependency", "after-all", "bitcast", "constant", "domain", "get-dimension-size",
    "get-tuple-element", "opt-barrier", "parameter", "partition-id", "replica-id", "tuple",
))
# fmt: on
_TAKES_A_PART = ("dynamic-slice", "slice", "gather")
_TRANSPARENT = ("bitcast", "reshape", "convert", "copy", "transpose")


def bytes_moved(program: Program, one: Executed) -> int:
    """Return the bytes that executing an instruction once moves."""
    instruction = one.instruction
    opcode = instruction.opcode.removesuffix("-start")
    if opcode in _NAMES_ONLY or (not instruction.operands and opcode == "custom-call"):
        return 0
    if opcode == "fusion":
        (name,) = instruction.called("calls")
        return _fusion(program, program.computations[name], one)
    if opcode in _TAKES_A_PART:
        taken = _total(one.types, everywhere=True)
        return taken * (_in_memory(one.operands[:1]) + _in_memory(one.types))
    if opcode == "dynamic-update-slice":
        update = one.computation.instructions[instruction.operands[1]].types
        return _total(update) + _total(update, everywhere=True) * _in_memory(one.types)
    if opcode in ("send", "recv"):
        return _total((one.operands if opcode == "send" else one.types)[:1])
    if opcode == "scatter":
        return 2 * _total(one.operands[2:])
    return _total(one.operands) + _total(one.types)


def _total(types: tuple[ArrayType, ...], everywhere: bool = False) -> int:
    return sum(kind.bytes for kind in types if everywhere or kind.in_main_memory)


def _in_memory(types: tuple[ArrayType, ...]) -> bool:
    return any(kind.in_main_memory for kind in types)


def _fusion(program: Program, fused: Computation, one: Executed) -> int:
    names = list(one.instruction.operands)
    moved = 0
    for name in dict.fromkeys(names):
        types = one.computation.instructions[name].types
        if _in_memory(types):
            places = (number for number, other in enumerate(names) if other == name)
            share = sum(_needed(program, fused, fused.parameters[place]) for place in places)
            moved += round(min(share, 1.0) * _total(types))
    for inner in fused:
        if _in_steps(program, inner) and _starts(fused, inner):
            moved += _total(inner.types) + sum(
                _total(fused.instructions[name].types) for name in inner.operands
            )
    return moved + _written(program, fused, fused.root, one.types)


def _in_steps(program: Program, instruction: Instruction) -> bool:
    """Return whether a collective goes on through several fusions."""
    is_collective = instruction.opcode in COLLECTIVES
    return is_collective and instruction.attribute("channel_id") in program.channels_in_steps


def _starts(fused: Computation, collective: Instruction) -> bool:
    return any(STARTS_STEPS in user.attributes for user in fused.users[collective.name])


def _hands_on(program: Program, instruction: Instruction) -> bool:
    """Return whether a fused instruction is a step of such a collective, or only makes a tuple."""
    ends = instruction.opcode == "custom-call" and any(
        target in instruction.attributes for target in (STARTS_STEPS, ENDS_STEPS)
    )
    return ends or instruction.opcode == "tuple" or _in_steps(program, instruction)


def _needed(program: Program, fused: Computation, value: Instruction, beyond: float = 1.0) -> float:
    """Return the share of `value` that a fused computation needs.

    Args:
        program: that it belongs to.
        fused: the computation.
        value: one of its instructions.
        beyond: share of the computation's result that is needed.
    """
    share = beyond if value.is_root else 0.0
    for user in fused.users[value.name]:
        first = user.operands[0] == value.name
        if user.opcode in _TAKES_A_PART and first:
            share += user.elements / max(value.elements, 1)
        elif user.opcode == "dynamic-update-slice" and first and value.name not in user.operands[1:]:
            # Written in place; the part that is not written is neither read.
            continue
        elif _hands_on(program, user):
            continue
        elif user.opcode in _TRANSPARENT:
            share += _needed(program, fused, user, beyond)
        elif user.opcode == "fusion":
            (name,) = user.called("calls")
            inner = program.computations[name]
            of_result = _needed(program, fused, user, beyond)
            for number, operand in enumerate(user.operands):
                if operand == value.name:
                    share += _needed(program, inner, inner.parameters[number], of_result)
        else:
            return 1.0
    return min(share, 1.0)


def _written(program: Program, fused: Computation, value: Instruction, types: tuple[ArrayType, ...]) -> int:
    """Return the bytes of `types` that a fused computation writes as `value`."""
    if not _in_memory(types) or value.opcode == "parameter" or _in_steps(program, value):
        return 0
    if value.opcode == "custom-call" and _hands_on(program, value):
        return 0
    if value.opcode == "tuple":
        parts, at = 0, 0
        for name in value.operands:
            part = fused.instructions[name]
            parts += _written(program, fused, part, types[at : at + len(part.types)])
            at += len(part.types)
        return parts
    if value.opcode == "dynamic-update-slice":
        return _total(fused.instructions[value.operands[1]].types, everywhere=True)
    if value.opcode in _TRANSPARENT and fused.instructions[value.operands[0]].opcode != "parameter":
        # A stack is often updated in another type or shape than the result has.
        inner = fused.instructions[value.operands[0]]
        written = _written(program, fused, inner, inner.types)
        share = written / max(_total(inner.types, everywhere=True), 1)
        return round(share * _total(types))
    if value.opcode == "fusion":
        (name,) = value.called("calls")
        inner = program.computations[name]
        return _written(program, inner, inner.root, types)
    return _total(types)
