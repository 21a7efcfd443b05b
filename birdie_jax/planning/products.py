"""FLOPs of instructions: matrix products, kernels, and element by element what XLA's own analysis counts.

- `dot`: 2 * numbers of the result * extent of the contracted axes.
- `convolution`, into which a TPU turns products: 2 * batch * output features * input features of a group *
  pairs of an output position and a tap whose input is neither padding nor a hole of a dilation.
- cuBLAS calls (GPU): as the `dot` that their configuration describes.
- Pallas kernels: what their cost estimate tells; without one nothing.
- all other arithmetic: 1 for each number of the result; for a reduction, between devices too, what its
  function takes for each number that it takes up. Neither transcendental functions nor the movement of data
  count.
"""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from birdie_jax.planning.execution import Executed, operand_types
from birdie_jax.planning.program_text import ArrayType, Computation, Instruction, Program

# fmt: off
_ELEMENTWISE = frozenset((
    "abs", "add", "and", "ceil", "clamp", "compare", "complex", "convert", "count-leading-zeros",
    "divide", "floor", "imag", "is-finite", "maximum", "minimum", "multiply", "negate", "not", "or",
    "popcnt", "real", "remainder", "round-nearest-afz", "round-nearest-even", "select",
    "shift-left", "shift-right-arithmetic", "shift-right-logical", "sign", "stochastic-convert",
    "subtract", "xor",
))
# fmt: on
_APPLY_A_FUNCTION = ("reduce", "map", "scatter", "all-reduce", "reduce-scatter")
_CUBLAS = re.compile(r'custom_call_target="(__cublas\$\w+|__cublas\$lt\$matmul[\w$]*)"')
_ESTIMATE = re.compile(r'"cost_estimate":\{[^{}]*?"flops":"?(\d+)')


class Flops(NamedTuple):
    """FLOPs of one execution.

    Attributes:
        products: of dots, convolutions and kernels: what the peak rate of a chip is told for.
        elementwise: of all else.
    """

    products: float
    elementwise: float

    def __add__(self, other: "Flops") -> "Flops":
        """Return the sum of both kinds."""
        return Flops(self.products + other.products, self.elementwise + other.elementwise)


def flops_of(program: Program, one: Executed) -> Flops:
    """Return the FLOPs of executing an instruction once, with all that it fuses."""
    return _flops(program, one.computation, one.instruction)


def _flops(program: Program, computation: Computation, instruction: Instruction) -> Flops:
    opcode = instruction.opcode
    operands = operand_types(computation, instruction) if opcode not in ("fusion", "parameter") else ()
    if opcode == "fusion":
        return _sum(program, instruction.called("calls"))
    if opcode.removesuffix("-start") in _APPLY_A_FUNCTION:
        return Flops(0.0, _applied(program, instruction, operands))
    if opcode == "dot":
        return Flops(_dot(instruction, _by_name(computation, instruction)), 0.0)
    if opcode == "convolution":
        return Flops(_convolution(instruction, _by_name(computation, instruction)), 0.0)
    if opcode.startswith("custom-call"):
        return Flops(_custom_call(instruction, _by_name(computation, instruction)), 0.0)
    if opcode in _ELEMENTWISE:
        return Flops(0.0, float(instruction.elements))
    return Flops(0.0, 0.0)


def _sum(program: Program, names: tuple[str, ...]) -> Flops:
    total = Flops(0.0, 0.0)
    for name in names:
        computation = program.computations[name]
        for instruction in computation:
            total += _flops(program, computation, instruction)
    return total


def _by_name(computation: Computation, instruction: Instruction) -> list[ArrayType]:
    """Return the arrays that are read, one for each operand, also where two are the same."""
    return [kind for name in instruction.operands for kind in computation.instructions[name].types]


def _applied(program: Program, instruction: Instruction, operands: tuple[ArrayType, ...]) -> float:
    """Return the FLOPs of an instruction that applies a function to numbers again and again."""
    each = _sum(program, instruction.called("to_apply")).elementwise
    if instruction.opcode == "reduce":
        return each * max(operands[0].elements - instruction.elements, 0)
    if instruction.opcode == "scatter":
        return each * operands[-1].elements
    return each * sum(array.elements for array in instruction.types)


def _numbers(text: str | None) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text or "")]


def _dot(instruction: Instruction, operands: list[ArrayType]) -> float:
    contracted = _numbers(instruction.attribute("lhs_contracting_dims"))
    return 2.0 * instruction.elements * float(np.prod([operands[0].sizes[axis] for axis in contracted]))


def _custom_call(instruction: Instruction, operands: list[ArrayType]) -> float:
    if _CUBLAS.search(instruction.attributes):
        configuration = re.search(r'"lhs_contracting_dimensions":(\[[^\]]*\])', instruction.attributes)
        axes = json.loads(configuration.group(1)) if configuration else []
        return 2.0 * instruction.elements * float(np.prod([operands[0].sizes[int(axis)] for axis in axes]))
    estimate = _ESTIMATE.search(instruction.attributes)
    return float(estimate.group(1)) if estimate else 0.0


def _convolution(instruction: Instruction, operands: list[ArrayType]) -> float:
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    if labels is None:
        raise ValueError(f"convolution {instruction.name}: no dim_labels")
    left, right, result = labels.groups()
    image, kernel, output = operands[0].sizes, operands[1].sizes, instruction.types[0].sizes
    flops = 2.0 * output[result.index("b")] * output[result.index("f")] * kernel[right.index("i")]
    for window in _windows(instruction, sum(label.isdigit() for label in right)):
        axis = str(window.axis)
        flops *= _valid_pairs(
            window, image[left.index(axis)], kernel[right.index(axis)], output[result.index(axis)]
        )
    return flops


class _Window(NamedTuple):
    axis: int
    stride: int
    pad: int
    image_dilation: int
    tap_dilation: int


def _windows(instruction: Instruction, axes: int) -> Iterator[_Window]:
    """Yield how the window lies along each spatial axis."""
    text = instruction.attribute("window") or ""
    parts = dict(part.split("=", 1) for part in text.split() if "=" in part)

    def values(name: str, default: str) -> list[str]:
        return parts[name].split("x") if name in parts else [default] * axes

    columns = (values(name, "1") for name in ("stride", "lhs_dilate", "rhs_dilate"))
    pads = [int(pad.split("_")[0]) for pad in values("pad", "0_0")]
    for axis, (stride, image, tap) in enumerate(zip(*columns, strict=True)):
        yield _Window(axis, int(stride), pads[axis], int(image), int(tap))


def _valid_pairs(window: _Window, image: int, taps: int, outputs: int) -> int:
    """Return how many pairs of an output position and a tap meet a number of the image."""
    positions = np.arange(outputs) * window.stride - window.pad
    pairs = 0
    for tap in range(taps):
        at = positions + tap * window.tap_dilation
        pairs += int(
            np.sum((at >= 0) & (at % window.image_dilation == 0) & (at // window.image_dilation < image))
        )
    return pairs
