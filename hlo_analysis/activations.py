"""The activations that a program keeps for its backward pass."""

from hlo_analysis.module import Computation, HloModule
from hlo_analysis.while_loops import changed_elements

_SAME_VALUE = ("copy", "bitcast", "opt-barrier", "optimization-barrier", "copy-done", "copy-start")


def activation_bytes(module: HloModule) -> int:
    """Return the bytes that loops write and later loops read: what is kept for the backward pass.

    Of the results of a `while` those count that its body changes and that a later `while` of the same
    computation reads without changing them. What is kept without loops, e.g. by a model of one layer,
    cannot be told from other temporaries.
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
    """Return the loop and the index of its result that a value is; None if it is no result of a loop."""
    value = computation.instructions[name]
    while value.opcode in _SAME_VALUE:
        value = computation.instructions[value.operands[0]]
    if value.opcode != "get-tuple-element":
        return None
    source = computation.instructions[value.operands[0]]
    return (source.name, value.tuple_index) if source.opcode == "while" else None
