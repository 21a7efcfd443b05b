"""Array shapes as HLO writes them, e.g. `bf16[8,2048]{1,0:T(8,128)S(1)}`."""

import re
from collections.abc import Iterable
from math import prod
from typing import NamedTuple

# Element types whose name does not end in their number of bits.
_BITS = {"pred": 8, "token": 0, "opaque": 0, "s4": 4, "u4": 4, "s2": 2, "u2": 2, "c64": 64, "c128": 128}
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,<=]*)\](\{[^{}]*\})?")
_MEMORY_SPACE = re.compile(r"S\((\d+)\)")


class ArrayShape(NamedTuple):
    """The element type, the dimensions and the memory of one array.

    Attributes:
        dtype: the HLO name of the element type, e.g. "bf16".
        dimensions: the extents of the dimensions.
        in_main_memory: whether the array is in the main memory of the chip; false where its layout puts it
            into the chip's own scratch memory, or on the host.
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
    """Return the array shapes in an HLO type, those of a tuple in their order."""
    found = []
    for dtype, dimensions, layout in _ARRAY.findall(text):
        space = _MEMORY_SPACE.search(layout)
        extents = tuple(int(extent.lstrip("<=")) for extent in dimensions.split(",") if extent)
        found.append(ArrayShape(dtype, extents, space is None or space.group(1) == "0"))
    return tuple(found)


def total_bytes(shapes: Iterable[ArrayShape]) -> int:
    """Return the bytes of arrays, in whatever memory they are."""
    return sum(shape.bytes for shape in shapes)


def main_memory_bytes(shapes: Iterable[ArrayShape]) -> int:
    """Return the bytes of those arrays that are in main memory."""
    return sum(shape.bytes for shape in shapes if shape.in_main_memory)
