"""Bytes that instructions move between a chip and its main memory.

An instruction reads each operand once and writes its result once. A fusion counts as one instruction.
Exceptions:
- instructions that only name data, or start a loop, move nothing;
- arrays in the chip's scratch memory move nothing; the instruction that copied them there counts;
- if an instruction only slices or gathers from an operand, also inside a fusion, only the slice counts;
- an in-place update of a slice reads and writes only the update; a scatter reads and writes its updates;
- a kernel that updates an operand in place moves the bytes of its cost estimate;
- values that a fusion returns unchanged move nothing;
- if a collective runs as parts of several fusions, the first fusion moves its operand and result.

The sum is a lower bound: a matrix product that does not fit on the chip reads an operand more than once,
which counts once here. The padding of layouts does not count.
"""

import re

from hlo_analysis.module import (
    ASYNC_FUSION_DONE,
    ASYNC_FUSION_START,
    COLLECTIVE_OPCODES,
    ArrayShape,
    Computation,
    HloModule,
    Instruction,
    changed_elements,
    main_memory_bytes,
    total_bytes,
)
from hlo_analysis.schedule import ExecutedInstruction

_SAME_VALUE = ("copy", "bitcast", "opt-barrier", "optimization-barrier", "copy-done", "copy-start")


def activation_bytes(module: HloModule) -> int:
    """Return the bytes of the activations that a program keeps for the backward pass.

    These are the results of a `while` that its body changes, and that a later `while` of the same
    computation reads without changing them. A program without loops, e.g. a model of one layer, gives 0:
    its activations cannot be distinguished from other temporaries.
    """
    kept = 0
    for computation in module.computations.values():
        loops = [one for one in computation if one.opcode == "while"]
        if len(loops) < 2:
            continue
        changed = {loop.name: changed_elements(module, loop) for loop in loops}
        found = set()
        for loop in loops:
            (initial,) = loop.operands
            elements = computation.instructions[initial].operands
            for index, element in enumerate(elements):
                if index in changed[loop.name]:
                    continue
                origin = _loop_result(computation, element)
                if origin is not None and origin[1] in changed[origin[0]]:
                    found.add(origin)
        kept += sum(computation.instructions[name].shapes[index].bytes for name, index in found)
    return kept


def _loop_result(computation: Computation, name: str) -> tuple[str, int] | None:
    """Return (loop, index) if a value is a result of a loop, else None."""
    value = computation.instructions[name]
    while value.opcode in _SAME_VALUE:
        value = computation.instructions[value.operands[0]]
    if value.opcode != "get-tuple-element":
        return None
    source = computation.instructions[value.operands[0]]
    return (source.name, value.tuple_index) if source.opcode == "while" else None


# fmt: off
_MOVES_NOTHING = frozenset((
    "add-dependency", "after-all", "bitcast", "constant", "domain", "get-dimension-size",
    "get-tuple-element", "opt-barrier", "parameter", "partition-id", "replica-id", "tuple",
))
# fmt: on
_ESTIMATED_BYTES = re.compile(r'"cost_estimate":\{[^{}]*?"bytes_accessed":"?(\d+)')
_SLICING = ("dynamic-slice", "slice", "gather")
_SAME_ELEMENTS = ("bitcast", "reshape", "convert", "copy", "transpose")


def memory_traffic(module: HloModule, executed: ExecutedInstruction) -> int:
    """Return the bytes that one execution of an instruction moves to and from main memory."""
    instruction, operands, shapes = executed.instruction, executed.operands, executed.shapes
    opcode = instruction.opcode.removesuffix("-start")
    if opcode in _MOVES_NOTHING or (not instruction.operands and opcode == "custom-call"):
        return 0
    if opcode == "fusion":
        return _fusion_traffic(module, module.fused_computation(instruction), executed)
    if opcode == "custom-call" and "output_to_operand_aliasing" in instruction.attributes:
        # A kernel may update a part of an operand in place.
        estimate = _ESTIMATED_BYTES.search(instruction.attributes)
        if estimate:
            return int(estimate.group(1))
    if opcode in _SLICING:
        return total_bytes(shapes) * (_in_main_memory(operands[:1]) + _in_main_memory(shapes))
    if opcode == "dynamic-update-slice":
        update = executed.computation.instructions[instruction.operands[1]].shapes
        return main_memory_bytes(update) + total_bytes(update) * _in_main_memory(shapes)
    if opcode in ("send", "recv"):
        return main_memory_bytes((operands if opcode == "send" else shapes)[:1])
    if opcode == "scatter":
        return 2 * main_memory_bytes(operands[2:])
    return main_memory_bytes(operands) + main_memory_bytes(shapes)


def _in_main_memory(shapes: tuple[ArrayShape, ...]) -> bool:
    return any(shape.in_main_memory for shape in shapes)


def _fusion_traffic(module: HloModule, fused: Computation, executed: ExecutedInstruction) -> int:
    names = list(executed.instruction.operands)
    moved = 0
    for name in dict.fromkeys(names):
        shapes = executed.computation.instructions[name].shapes
        if _in_main_memory(shapes):
            numbers = (number for number, other in enumerate(names) if other == name)
            share = sum(_share_read(module, fused, fused.parameters[number]) for number in numbers)
            moved += round(min(share, 1.0) * main_memory_bytes(shapes))
    for inner in fused:
        if _is_async_fused(module, inner) and _starts_async_fusion(fused, inner):
            moved += main_memory_bytes(inner.shapes) + sum(
                main_memory_bytes(fused.instructions[name].shapes) for name in inner.operands
            )
    return moved + _written_bytes(module, fused, fused.root, executed.shapes)


def _is_async_fused(module: HloModule, instruction: Instruction) -> bool:
    """Return whether an instruction is a collective that runs as parts of several fusions."""
    is_collective = instruction.opcode in COLLECTIVE_OPCODES
    return is_collective and instruction.attribute("channel_id") in module.async_fusion_channels


def _starts_async_fusion(fused: Computation, collective: Instruction) -> bool:
    return any(ASYNC_FUSION_START in user.attributes for user in fused.users[collective.name])


def _passes_on(module: HloModule, instruction: Instruction) -> bool:
    """Return whether a fused instruction moves nothing: a tuple, or a part of an async collective."""
    is_marker = instruction.opcode == "custom-call" and any(
        target in instruction.attributes for target in (ASYNC_FUSION_START, ASYNC_FUSION_DONE)
    )
    return is_marker or instruction.opcode == "tuple" or _is_async_fused(module, instruction)


def _share_read(
    module: HloModule, fused: Computation, value: Instruction, share_of_result: float = 1.0
) -> float:
    """Return the share of a value that a fused computation reads, between 0 and 1.

    Args:
        module: the module of the computation.
        fused: the fused computation.
        value: one of its instructions.
        share_of_result: the share of the computation's result that its users read.
    """
    share = share_of_result if value.is_root else 0.0
    for user in fused.users[value.name]:
        is_first_operand = user.operands[0] == value.name
        if user.opcode in _SLICING and is_first_operand:
            share += user.elements / max(value.elements, 1)
        elif (
            user.opcode == "dynamic-update-slice"
            and is_first_operand
            and value.name not in user.operands[1:]
        ):
            # An in-place update reads nothing of the elements that it keeps.
            continue
        elif _passes_on(module, user):
            continue
        elif user.opcode in _SAME_ELEMENTS:
            share += _share_read(module, fused, user, share_of_result)
        elif user.opcode == "fusion":
            inner = module.fused_computation(user)
            share_of_inner = _share_read(module, fused, user, share_of_result)
            for number, operand in enumerate(user.operands):
                if operand == value.name:
                    share += _share_read(module, inner, inner.parameters[number], share_of_inner)
        else:
            return 1.0
    return min(share, 1.0)


def _written_bytes(
    module: HloModule, fused: Computation, value: Instruction, shapes: tuple[ArrayShape, ...]
) -> int:
    """Return the bytes of the result `shapes` that a fused computation writes as `value`."""
    if not _in_main_memory(shapes) or value.opcode == "parameter" or _is_async_fused(module, value):
        return 0
    if value.opcode == "custom-call" and _passes_on(module, value):
        return 0
    if value.opcode == "tuple":
        written, begin = 0, 0
        for name in value.operands:
            element = fused.instructions[name]
            end = begin + len(element.shapes)
            written += _written_bytes(module, fused, element, shapes[begin:end])
            begin = end
        return written
    if value.opcode == "dynamic-update-slice":
        return total_bytes(fused.instructions[value.operands[1]].shapes)
    if value.opcode in _SAME_ELEMENTS and fused.instructions[value.operands[0]].opcode != "parameter":
        # The update of a stack often has another type or shape than the result.
        inner = fused.instructions[value.operands[0]]
        written = _written_bytes(module, fused, inner, inner.shapes)
        share = written / max(total_bytes(inner.shapes), 1)
        return round(share * main_memory_bytes(shapes))
    if value.opcode == "fusion":
        inner_computation = module.fused_computation(value)
        return _written_bytes(module, inner_computation, inner_computation.root, shapes)
    return main_memory_bytes(shapes)
