"""A compiled program's text, as `compiled.as_text()` gives it, taken apart.

The grammar is that of XLA's HLO text (https://openxla.org/xla/operation_semantics): computations of
instructions with the types of their results. Of an instruction only what is counted later is kept apart,
everything else stays in `attributes`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import NamedTuple

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
STARTS_STEPS, ENDS_STEPS = '"AsyncCollectiveStart"', '"AsyncCollectiveDone"'
_BITS = {"pred": 8, "token": 0, "opaque": 0, "s4": 4, "u4": 4, "s2": 2, "u2": 2, "c64": 64, "c128": 128}
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,<=]*)\](\{[^{}]*\})?")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?-> .*\{$")
# What follows the # is the number of an element of a tuple, in place of a get-tuple-element.
_NAME = re.compile(r"%([\w.\-]+(?:#\d+)*)")
_MEMORY_SPACE = re.compile(r"S\((\d+)\)")


class ArrayType(NamedTuple):
    """Type of one array.

    Attributes:
        dtype: XLA's name of the element type, e.g. "bf16".
        sizes: of the dimensions.
        in_main_memory: false where the layout puts the array into the chip's own scratch memory, or on
            the host.
    """

    dtype: str
    sizes: tuple[int, ...]
    in_main_memory: bool = True

    @property
    def elements(self) -> int:
        """Numbers in the array."""
        return prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Bytes of the numbers, without the padding that a layout may add."""
        bits = _BITS.get(self.dtype)
        if bits is None:
            bits = int(re.findall(r"\d+", self.dtype)[0])
        return -(-self.elements * bits // 8)


def parse_types(text: str) -> tuple[ArrayType, ...]:
    """Return the arrays of an HLO type, those of a tuple in their order."""
    found = []
    for dtype, sizes, layout in _ARRAY.findall(text):
        space = _MEMORY_SPACE.search(layout)
        counted = tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size)
        found.append(ArrayType(dtype, counted, space is None or space.group(1) == "0"))
    return tuple(found)


@dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
        name: of its result.
        opcode: such as "fusion" or "all-gather-start".
        types: arrays of the result; those of a tuple in their order.
        operands: names of what it reads.
        arguments: the text between its parentheses.
        attributes: the text after them.
        is_root: whether its result is the computation's.
    """

    name: str
    opcode: str
    types: tuple[ArrayType, ...]
    operands: tuple[str, ...]
    arguments: str
    attributes: str
    is_root: bool

    @property
    def elements(self) -> int:
        """Numbers in the first array of the result."""
        return self.types[0].elements if self.types else 0

    def attribute(self, name: str) -> str | None:
        """Return what stands after `name=`, without the braces around it; None if there is no such."""
        found = re.search(rf"(?:^|[\s,]){name}=(\{{[^{{}}]*\}}|\[[^\]]*\]|[^\s,]+)", self.attributes)
        return found.group(1).strip("{}") if found else None

    def called(self, name: str) -> tuple[str, ...]:
        """Return the computations that the attribute `name` names."""
        return tuple(part.strip().lstrip("%") for part in (self.attribute(name) or "").split(",") if part)

    @property
    def source(self) -> str:
        """Where in the model the instruction comes from, as JAX tells; "" if nothing is told."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found.group(1) if found else ""


@dataclass(frozen=True)
class Computation:
    """Instructions that are executed together.

    Attributes:
        name: of the computation.
        instructions: by name, in the order of the text, which is that of execution.
    """

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Instruction]:
        """Go through the instructions in their order."""
        return iter(self.instructions.values())

    @cached_property
    def root(self) -> Instruction:
        """The instruction whose result is the computation's."""
        return next(instruction for instruction in self if instruction.is_root)

    @cached_property
    def parameters(self) -> dict[int, Instruction]:
        """The computation's arguments by their number."""
        return {int(one.arguments): one for one in self if one.opcode == "parameter"}

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """What reads each result."""
        found: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for instruction in self:
            for name in dict.fromkeys(instruction.operands):
                found[name].append(instruction)
        return found


@dataclass(frozen=True)
class Program:
    """A compiled program.

    Attributes:
        computations: by name.
        entry: the one that is called.
    """

    computations: dict[str, Computation]
    entry: Computation

    @cached_property
    def channels_in_steps(self) -> frozenset[str]:
        """Channels of the collectives that go on through several fusions.

        A TPU's compiler hides a collective behind other work so: each of the fusions, from one that starts
        it to one that ends it, holds the same collective. (Other collectives may share a channel, too.)
        """
        return frozenset(
            computation.instructions[name].attribute("channel_id") or ""
            for computation in self.computations.values()
            for instruction in computation
            if instruction.opcode == "custom-call" and STARTS_STEPS in instruction.attributes
            for name in instruction.operands
        )


def parse_program(text: str) -> Program:
    """Return the program that `text` tells.

    Raises:
        ValueError: the text is not that of a program.
    """
    computations: dict[str, Computation] = {}
    entry = current = None
    type_texts: dict[str, str] = {}
    for line in text.splitlines():
        if current is None:
            header = _HEADER.match(line)
            if header is not None:
                current, type_texts = Computation(header.group(2)), {}
                computations[current.name] = current
                if header.group(1):
                    entry = current
        elif line.startswith("}"):
            current = None
        else:
            instruction = _parse_instruction(line)
            if instruction is not None:
                for name in instruction.operands:
                    _add_element(current, type_texts, name)
                type_texts[instruction.name] = line
                current.instructions[instruction.name] = instruction
    if entry is None:
        raise ValueError(f"the text of a compiled program has an entry; found {text[:80]!r}")
    return Program(computations, entry)


def _add_element(computation: Computation, type_texts: dict[str, str], name: str) -> None:
    """Add the get-tuple-element that an operand such as `x#3` stands for.

    Args:
        computation: that the operand stands in.
        type_texts: what comes before the opcode of each of its instructions so far, and more.
        name: of the operand.
    """
    source, separator, number = name.rpartition("#")
    if not separator or name in computation.instructions:
        return
    _add_element(computation, type_texts, source)
    element = _elements(type_texts[source].partition(" = ")[2])[int(number)]
    type_texts[name] = f"{name} = {element} "
    computation.instructions[name] = Instruction(
        name, "get-tuple-element", parse_types(element), (source,), f"%{source}", f"index={number}", False
    )


def _elements(text: str) -> list[str]:
    """Return the types that the tuple type at the start of `text` is made of."""
    closing = _closing(text, 0)
    depth, begin, found = 0, 1, []
    for place in range(1, closing + 1):
        character = text[place]
        if place == closing or (character == "," and not depth):
            found.append(text[begin:place].strip())
            begin = place + 1
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(character, 0)
    return found


def _parse_instruction(line: str) -> Instruction | None:
    line = line.strip()
    is_root = line.startswith("ROOT ")
    name, separator, rest = line.removeprefix("ROOT ").partition(" = ")
    if not separator:
        return None
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    types, rest = rest[:end], rest[end:].lstrip()
    opening = rest.index("(")
    closing = _closing(rest, opening)
    arguments = rest[opening + 1 : closing]
    return Instruction(
        name=name.lstrip("%"),
        opcode=rest[:opening],
        types=parse_types(types),
        operands=tuple(_NAME.findall(arguments)),
        arguments=arguments,
        attributes=rest[closing + 1 :].lstrip(", "),
        is_root=is_root,
    )


def _closing(text: str, opening: int) -> int:
    """Return where the parenthesis that opens at `opening` closes."""
    depth = 0
    for found in re.compile(r'"(?:[^"\\]|\\.)*"|[()]').finditer(text, opening):
        depth += {"(": 1, ")": -1}.get(found.group(), 0)
        if depth == 0:
            return found.start()
    raise ValueError(f"a parenthesis does not close: {text[opening : opening + 80]!r}")
