"""FLOPs of convolutions, into which the TPU compiler turns matrix products.

They are 2 * batch * output features * input features of a group * the pairs of an output position and a
kernel tap whose input element is neither padding nor a hole of a dilation.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hlo_analysis.module import Instruction
from hlo_analysis.shapes import ArrayShape


class _Window(NamedTuple):
    """The convolution's window along one spatial axis."""

    axis: int
    stride: int
    low_padding: int
    input_dilation: int
    kernel_dilation: int


def convolution_flops(instruction: Instruction, operands: Sequence[ArrayShape]) -> float:
    """Return the FLOPs of one execution of a convolution.

    Args:
        instruction: the convolution.
        operands: the shapes of its input and of its kernel.

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
    text = instruction.attribute("window") or ""
    parts = dict(part.split("=", 1) for part in text.split() if "=" in part)

    def values(name: str, default: str) -> list[str]:
        return parts[name].split("x") if name in parts else [default] * axes

    columns = (values(name, "1") for name in ("stride", "lhs_dilate", "rhs_dilate"))
    paddings = [int(padding.split("_")[0]) for padding in values("pad", "0_0")]
    for axis, (stride, of_input, of_kernel) in enumerate(zip(*columns, strict=True)):
        yield _Window(axis, int(stride), paddings[axis], int(of_input), int(of_kernel))


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
