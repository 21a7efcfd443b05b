"""Parse HLO text, as `compiled.as_text()` returns it.

XLA's HLO printer defines the format (https://openxla.org/xla/operation_semantics).
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from hlo_analysis.module import Computation, HloModule, Instruction, parse_shapes

_SIZE = r"([\d.]+)([KMGT]?)"
_MESSAGES = (
    rf"Used {_SIZE} of {_SIZE} hbm",
    rf"required for HLO temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)",
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class OutOfMemory(NamedTuple):
    """The memory that a program needs when the TPU compiler refuses it.

    Attributes:
        needed: the bytes that the program needs on one device.
        available: the bytes that the device has.
    """

    needed: float
    available: float


def parse_out_of_memory(message: str) -> OutOfMemory | None:
    """Return the figures in a compiler's error message, or None if the message is not about memory."""
    for pattern in _MESSAGES:
        found = re.search(pattern, message)
        if found is not None:
            needed, needed_unit, available, available_unit = found.groups()
            return OutOfMemory(
                float(needed) * _UNITS[needed_unit], float(available) * _UNITS[available_unit]
            )
    return None


_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?-> .*\{$")
_FOOTER = re.compile(r"^\}(, execution_thread=.*)?$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?[\w.\-]+ = ")
# `%x#3` is element 3 of the tuple x, without a get-tuple-element.
_NAME = re.compile(r"%([\w.\-]+(?:#\d+)*)")
_STRING_OR_PARENTHESIS = re.compile(r'"(?:[^"\\]|\\.)*"|[()]')


def parse_hlo(text: str) -> HloModule:
    """Parse an HLO module.

    Raises:
        ValueError: the text is not an HLO module.
    """
    computations: dict[str, Computation] = {}
    entry: Computation | None = None
    current: Computation | None = None
    lines: dict[str, str] = {}
    for line in _whole_lines(text):
        if current is None:
            header = _HEADER.match(line)
            if header is not None:
                current, lines = Computation(header.group(2)), {}
                computations[current.name] = current
                if header.group(1):
                    entry = current
        elif _FOOTER.match(line):
            current = None
        else:
            instruction = _parse_instruction(line)
            if instruction is not None:
                for name in instruction.operands:
                    _add_tuple_element(current, lines, name)
                lines[instruction.name] = line
                current.instructions[instruction.name] = instruction
    if entry is None:
        raise ValueError(f"HLO text: found no ENTRY computation in {text[:80]!r}")
    return HloModule(computations, entry)


def _whole_lines(text: str) -> Iterator[str]:
    """Yield headers, instructions and footers, each as one line.

    A Pallas kernel's metadata has line breaks, so its call and the instructions that read its results span
    several lines.
    """
    instruction = ""
    for line in text.splitlines():
        if instruction and not (_INSTRUCTION.match(line) or _FOOTER.match(line)):
            instruction += line
            continue
        if instruction:
            yield instruction
        instruction = line if _INSTRUCTION.match(line) else ""
        if not instruction:
            yield line


def _parse_instruction(line: str) -> Instruction | None:
    line = line.strip()
    is_root = line.startswith("ROOT ")
    name, separator, rest = line.removeprefix("ROOT ").partition(" = ")
    if not separator:
        return None
    end = _closing_parenthesis(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    result_type, rest = rest[:end], rest[end:].lstrip()
    opening = rest.index("(")
    closing = _closing_parenthesis(rest, opening)
    arguments = rest[opening + 1 : closing]
    return Instruction(
        name=name.lstrip("%"),
        opcode=rest[:opening],
        shapes=parse_shapes(result_type),
        operands=tuple(_NAME.findall(arguments)),
        arguments=arguments,
        attributes=rest[closing + 1 :].lstrip(", "),
        is_root=is_root,
    )


def _add_tuple_element(computation: Computation, lines: dict[str, str], name: str) -> None:
    """Add the get-tuple-element that an operand such as `x#3` denotes.

    Args:
        computation: the computation that contains the operand.
        lines: the text of each instruction so far, by name; the new instruction is added.
        name: the name of the operand.
    """
    source, separator, index = name.rpartition("#")
    if not separator or name in computation.instructions:
        return
    _add_tuple_element(computation, lines, source)
    element = _tuple_elements(lines[source].partition(" = ")[2])[int(index)]
    lines[name] = f"{name} = {element} "
    computation.instructions[name] = Instruction(
        name, "get-tuple-element", parse_shapes(element), (source,), f"%{source}", f"index={index}", False
    )


def _tuple_elements(text: str) -> list[str]:
    """Return the element types of the tuple type at the start of `text`."""
    closing = _closing_parenthesis(text, 0)
    depth, begin, found = 0, 1, []
    for position in range(1, closing + 1):
        character = text[position]
        if position == closing or (character == "," and not depth):
            found.append(text[begin:position].strip())
            begin = position + 1
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(character, 0)
    return found


def _closing_parenthesis(text: str, opening: int) -> int:
    """Return the position of the parenthesis that closes the one at `opening`."""
    depth = 0
    for found in _STRING_OR_PARENTHESIS.finditer(text, opening):
        depth += {"(": 1, ")": -1}.get(found.group(), 0)
        if depth == 0:
            return found.start()
    raise ValueError(f"HLO text: a parenthesis is not closed in {text[opening : opening + 80]!r}")
