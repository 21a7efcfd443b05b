"""A parsed HLO module: computations of instructions with the shapes of their results.

The parser reads only the parts of an instruction that every cost needs; `attributes` has the rest as text.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import NamedTuple

# Element types whose names do not end in their number of bits.
_BITS = {"pred": 8, "token": 0, "opaque": 0, "s4": 4, "u4": 4, "s2": 2, "u2": 2, "c64": 64, "c128": 128}
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,<=]*)\](\{[^{}]*\})?")
_MEMORY_SPACE = re.compile(r"S\((\d+)\)")


class ArrayShape(NamedTuple):
    """The element type, the dimensions and the memory of one array.

    Attributes:
        dtype: the HLO name of the element type, e.g. "bf16".
        dimensions: the extents of the dimensions.
        in_main_memory: whether the array is in the chip's main memory; false if its layout places it in
            the chip's scratch memory or on the host.
    """

    dtype: str
    dimensions: tuple[int, ...]
    in_main_memory: bool = True

    @property
    def elements(self) -> int:
        """The number of elements of the array."""
        return prod(self.dimensions)

    @property
    def bytes(self) -> int:
        """The number of bytes of the elements, without the padding that a layout may add."""
        bits = _BITS.get(self.dtype)
        if bits is None:
            bits = int(re.findall(r"\d+", self.dtype)[0])
        return -(-self.elements * bits // 8)


def parse_shapes(text: str) -> tuple[ArrayShape, ...]:
    """Return the array shapes in an HLO type; for a tuple, in order."""
    found = []
    for dtype, dimensions, layout in _ARRAY.findall(text):
        space = _MEMORY_SPACE.search(layout)
        extents = tuple(int(extent.lstrip("<=")) for extent in dimensions.split(",") if extent)
        found.append(ArrayShape(dtype, extents, space is None or space.group(1) == "0"))
    return tuple(found)


def total_bytes(shapes: Iterable[ArrayShape]) -> int:
    """Return the bytes of arrays in any memory."""
    return sum(shape.bytes for shape in shapes)


def main_memory_bytes(shapes: Iterable[ArrayShape]) -> int:
    """Return the bytes of the arrays in main memory."""
    return sum(shape.bytes for shape in shapes if shape.in_main_memory)


COLLECTIVE_OPCODES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
# A TPU runs one collective as parts of the fusions from the first of these custom calls to the second.
ASYNC_FUSION_START, ASYNC_FUSION_DONE = '"AsyncCollectiveStart"', '"AsyncCollectiveDone"'


@dataclass(frozen=True)
class Instruction:
    """One instruction, i.e. one line of a computation.

    Attributes:
        name: the name of the instruction and of its result.
        opcode: the opcode, such as "fusion" or "all-gather-start".
        shapes: the array shapes of the result; for a tuple, in order.
        operands: the names of the instructions whose results it reads.
        arguments: the text between the parentheses after the opcode.
        attributes: the text after these parentheses.
        is_root: whether its result is the result of the computation.
    """

    name: str
    opcode: str
    shapes: tuple[ArrayShape, ...]
    operands: tuple[str, ...]
    arguments: str
    attributes: str
    is_root: bool

    @property
    def elements(self) -> int:
        """The number of elements of the result's first array."""
        return self.shapes[0].elements if self.shapes else 0

    def attribute(self, name: str) -> str | None:
        """Return the value of an attribute without its braces, or None if there is no such attribute."""
        found = re.search(rf"(?:^|[\s,]){name}=(\{{[^{{}}]*\}}|\[[^\]]*\]|[^\s,]+)", self.attributes)
        return found.group(1).strip("{}") if found else None

    @property
    def tuple_index(self) -> int:
        """The index that a get-tuple-element takes from its tuple.

        Raises:
            ValueError: the instruction has no index.
        """
        index = self.attribute("index")
        if index is None:
            raise ValueError(f"{self.opcode} {self.name}: found no index; a get-tuple-element has one")
        return int(index)

    def called_computations(self, attribute: str) -> tuple[str, ...]:
        """Return the names of the computations in an attribute such as "calls" or "body"."""
        names = (self.attribute(attribute) or "").split(",")
        return tuple(name.strip().lstrip("%") for name in names if name)

    @property
    def op_name(self) -> str:
        """The place in the JAX program that the instruction comes from; "" if the text has none."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found.group(1) if found else ""


@dataclass(frozen=True)
class Computation:
    """Instructions that are executed together.

    Attributes:
        name: the name of the computation.
        instructions: the instructions by name, in the order of the text and of execution.
    """

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Instruction]:
        """Iterate over the instructions in order."""
        return iter(self.instructions.values())

    @cached_property
    def root(self) -> Instruction:
        """The instruction whose result is the result of the computation."""
        return next(instruction for instruction in self if instruction.is_root)

    @cached_property
    def parameters(self) -> dict[int, Instruction]:
        """The parameters of the computation, by number."""
        return {int(one.arguments): one for one in self if one.opcode == "parameter"}

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """The instructions that read each result, by the name of the result."""
        found: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for instruction in self:
            for name in dict.fromkeys(instruction.operands):
                found[name].append(instruction)
        return found

    def operand_shapes(self, instruction: Instruction) -> tuple[ArrayShape, ...]:
        """Return the array shapes that an instruction reads; a repeated operand counts once."""
        names = dict.fromkeys(instruction.operands)
        return tuple(shape for name in names for shape in self.instructions[name].shapes)


@dataclass(frozen=True)
class HloModule:
    """A compiled program.

    Attributes:
        computations: the computations by name.
        entry: the computation that a call of the program executes.
    """

    computations: dict[str, Computation]
    entry: Computation

    def fused_computation(self, fusion: Instruction) -> Computation:
        """Return the computation that a fusion executes."""
        (name,) = fusion.called_computations("calls")
        return self.computations[name]

    @cached_property
    def async_fusion_channels(self) -> frozenset[str]:
        """The channels of the collectives that run as parts of several fusions.

        The TPU compiler overlaps a collective with other work: each fusion from the one with an
        AsyncCollectiveStart to the one with an AsyncCollectiveDone contains the same collective. Other
        collectives may share its channel.
        """
        return frozenset(
            computation.instructions[name].attribute("channel_id") or ""
            for computation in self.computations.values()
            for instruction in computation
            if instruction.opcode == "custom-call" and ASYNC_FUSION_START in instruction.attributes
            for name in instruction.operands
        )


def loop_body(module: HloModule, loop: Instruction) -> Computation:
    """Return the body of a `while`."""
    return module.computations[loop.called_computations("body")[0]]


def changed_elements(module: HloModule, loop: Instruction) -> set[int]:
    """Return the indices of the loop state's elements that the body changes."""
    body = loop_body(module, loop)
    if body.root.opcode != "tuple":
        return set(range(len(body.root.shapes)))
    return {
        index
        for index, name in enumerate(body.root.operands)
        if _received_element(body, body.instructions[name]) != index
    }


def _received_element(body: Computation, value: Instruction) -> int | None:
    """Return the index of a value in the loop state that the body receives, or None if it is not in it."""
    if value.opcode != "get-tuple-element" or value.operands[0] != body.parameters[0].name:
        return None
    return value.tuple_index
