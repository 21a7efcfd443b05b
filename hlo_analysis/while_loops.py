"""The state of a `while` loop: which elements of its tuple the body changes."""

from hlo_analysis.module import Computation, HloModule, Instruction


def loop_body(module: HloModule, loop: Instruction) -> Computation:
    """Return the computation that a `while` executes again and again."""
    return module.computations[loop.called_computations("body")[0]]


def changed_elements(module: HloModule, loop: Instruction) -> set[int]:
    """Return the indices of the loop state's elements that the body does not return as it received them."""
    body = loop_body(module, loop)
    if body.root.opcode != "tuple":
        return set(range(len(body.root.shapes)))
    return {
        index
        for index, name in enumerate(body.root.operands)
        if _received_element(body, body.instructions[name]) != index
    }


def _received_element(body: Computation, value: Instruction) -> int | None:
    """Return the index of the element of the loop state that a value of the body is; None if it is none."""
    if value.opcode != "get-tuple-element" or value.operands[0] != body.parameters[0].name:
        return None
    return value.tuple_index
