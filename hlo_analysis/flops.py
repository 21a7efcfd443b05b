"""FLOPs of instructions: matrix products and kernels, and elementwise arithmetic as XLA counts it.

- `dot`: 2 * elements of the result * extent of the contracted dimensions.
- `convolution`: see `convolution_flops`.
- cuBLAS calls (GPU): the FLOPs of the `dot` that their configuration describes.
- Pallas kernels: their own cost estimate, or 0 if they have none.
- reductions, on one device or between devices: the FLOPs of their function for each element reduced; of a
  window, for each of its elements but the first.
- all other arithmetic: 1 for each element of the result.

Transcendental functions and the movement of data do not count.
"""

import json
import re
from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from hlo_analysis.module import ArrayShape, Computation, HloModule, Instruction
from hlo_analysis.schedule import ExecutedInstruction


class _Window(NamedTuple):
    """The window of a convolution along one spatial axis."""

    axis: int
    stride: int
    low_padding: int
    input_dilation: int
    kernel_dilation: int


def convolution_flops(instruction: Instruction, operands: Sequence[ArrayShape]) -> float:
    """Return the FLOPs of one execution of a convolution.

    They are 2 * batch * output features * input features of a group * pairs. A pair is an output position
    and a kernel tap whose input element is neither padding nor a hole of a dilation.

    Args:
        instruction: the convolution.
        operands: the shapes of its input and its kernel.

    Raises:
        ValueError: the instruction has no dim_labels.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    if labels is None:
        raise ValueError(f"convolution {instruction.name}: found no dim_labels")
    input_labels, kernel_labels, output_labels = labels.groups()
    inputs, kernel = operands[0].dimensions, operands[1].dimensions
    outputs = instruction.shapes[0].dimensions
    flops = 2.0 * outputs[output_labels.index("b")] * outputs[output_labels.index("f")]
    flops *= kernel[kernel_labels.index("i")]
    for window in _windows(instruction, sum(label.isdigit() for label in kernel_labels)):
        axis = str(window.axis)
        flops *= _valid_pairs(
            window,
            inputs[input_labels.index(axis)],
            kernel[kernel_labels.index(axis)],
            outputs[output_labels.index(axis)],
        )
    return flops


def _windows(instruction: Instruction, axes: int) -> Iterator[_Window]:
    """Yield the window along each spatial axis."""
    parts = _window_parts(instruction)

    def values(name: str, default: str) -> list[str]:
        return parts[name].split("x") if name in parts else [default] * axes

    columns = (values(name, "1") for name in ("stride", "lhs_dilate", "rhs_dilate"))
    paddings = [int(padding.split("_")[0]) for padding in values("pad", "0_0")]
    for axis, (stride, of_input, of_kernel) in enumerate(zip(*columns, strict=True)):
        yield _Window(axis, int(stride), paddings[axis], int(of_input), int(of_kernel))


def _window_parts(instruction: Instruction) -> dict[str, str]:
    """Return the text of each property of a window, such as {"size": "2x3"}."""
    text = instruction.attribute("window") or ""
    return dict(part.split("=", 1) for part in text.split() if "=" in part)


def _valid_pairs(window: _Window, inputs: int, taps: int, outputs: int) -> int:
    """Return the number of pairs of an output position and a tap that meet an input element."""
    positions = np.arange(outputs) * window.stride - window.low_padding
    pairs = 0
    for tap in range(taps):
        at = positions + tap * window.kernel_dilation
        pairs += int(
            np.sum((at >= 0) & (at % window.input_dilation == 0) & (at // window.input_dilation < inputs))
        )
    return pairs


# fmt: off
_ELEMENTWISE = frozenset((
    "abs", "add", "and", "ceil", "clamp", "compare", "complex", "convert", "count-leading-zeros",
    "divide", "floor", "imag", "is-finite", "maximum", "minimum", "multiply", "negate", "not", "or",
    "popcnt", "real", "remainder", "round-nearest-afz", "round-nearest-even", "select",
    "shift-left", "shift-right-arithmetic", "shift-right-logical", "sign", "stochastic-convert",
    "subtract", "xor",
))
# fmt: on
_APPLY_A_FUNCTION = ("reduce", "reduce-window", "map", "scatter", "all-reduce", "reduce-scatter")
_CUBLAS = re.compile(r'custom_call_target="(__cublas\$\w+|__cublas\$lt\$matmul[\w$]*)"')
_COST_ESTIMATE = re.compile(r'"cost_estimate":\{[^{}]*?"flops":"?(\d+)')
# In the metadata of a Triton kernel, which has no cost estimate; quotes are escaped.
_TRITON_FLOPS = re.compile(r'serialized_metadata = "\{\\22flops\\22: \\22(\d+)')


class Flops(NamedTuple):
    """FLOPs by the unit that executes them.

    Attributes:
        dot: the FLOPs of dots, convolutions and kernels; the peak FLOPs of a chip refer to these.
        elementwise: the FLOPs of all other arithmetic.
    """

    dot: float
    elementwise: float

    def __add__(self, other: object) -> "Flops":
        """Add each field."""
        if not isinstance(other, Flops):
            return NotImplemented
        return Flops(self.dot + other.dot, self.elementwise + other.elementwise)


def instruction_flops(module: HloModule, executed: ExecutedInstruction) -> Flops:
    """Return the FLOPs of one execution of an instruction, including the instructions that it fuses."""
    return _flops(module, executed.computation, executed.instruction)


def _flops(module: HloModule, computation: Computation, instruction: Instruction) -> Flops:
    opcode = instruction.opcode.removesuffix("-start")
    if opcode == "fusion":
        return _computation_flops(module, instruction.called_computations("calls"))
    if opcode in _APPLY_A_FUNCTION:
        operands = computation.operand_shapes(instruction)
        return Flops(0.0, _applied_function_flops(module, instruction, operands))
    if opcode == "dot":
        return Flops(_dot_flops(instruction, _operands_as_written(computation, instruction)), 0.0)
    if opcode == "convolution":
        return Flops(convolution_flops(instruction, _operands_as_written(computation, instruction)), 0.0)
    if opcode.startswith("custom-call"):
        return Flops(_custom_call_flops(instruction, _operands_as_written(computation, instruction)), 0.0)
    if opcode in _ELEMENTWISE:
        return Flops(0.0, float(instruction.elements))
    return Flops(0.0, 0.0)


def _computation_flops(module: HloModule, names: tuple[str, ...]) -> Flops:
    total = Flops(0.0, 0.0)
    for name in names:
        computation = module.computations[name]
        for instruction in computation:
            total += _flops(module, computation, instruction)
    return total


def _operands_as_written(computation: Computation, instruction: Instruction) -> list[ArrayShape]:
    """Return the shapes of the operands, with repeated operands."""
    return [shape for name in instruction.operands for shape in computation.instructions[name].shapes]


def _applied_function_flops(
    module: HloModule, instruction: Instruction, operands: Sequence[ArrayShape]
) -> float:
    """Return the FLOPs of an instruction that applies a function to each element, such as a reduction."""
    each = _computation_flops(module, instruction.called_computations("to_apply")).elementwise
    if instruction.opcode == "reduce":
        return each * max(operands[0].elements - instruction.elements, 0)
    if instruction.opcode == "reduce-window":
        taps = prod(map(int, _window_parts(instruction).get("size", "1").split("x")))
        return each * (taps - 1) * instruction.shapes[0].elements
    if instruction.opcode == "scatter":
        return each * operands[-1].elements
    return each * sum(shape.elements for shape in instruction.shapes)


def _dot_flops(instruction: Instruction, operands: Sequence[ArrayShape]) -> float:
    contracted = re.findall(r"\d+", instruction.attribute("lhs_contracting_dims") or "")
    return _product_flops(instruction, operands[0], [int(dimension) for dimension in contracted])


def _product_flops(instruction: Instruction, left: ArrayShape, contracted: Sequence[int]) -> float:
    extent = prod(left.dimensions[dimension] for dimension in contracted)
    return 2.0 * instruction.elements * float(extent)


def _custom_call_flops(instruction: Instruction, operands: Sequence[ArrayShape]) -> float:
    if _CUBLAS.search(instruction.attributes):
        found = re.search(r'"lhs_contracting_dimensions":(\[[^\]]*\])', instruction.attributes)
        contracted = json.loads(found.group(1)) if found else []
        return _product_flops(instruction, operands[0], [int(dimension) for dimension in contracted])
    estimate = _COST_ESTIMATE.search(instruction.attributes) or _TRITON_FLOPS.search(instruction.attributes)
    return float(estimate.group(1)) if estimate else 0.0
