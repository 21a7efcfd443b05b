"""Gated recurrent layers between their projections: gates, linear recurrence and output gate as one.

What a layer computes is its `Cell`, which stands with the layer; here is how a cell is scanned.
"""

from pallas_kernels.gated_scan.cell import (
    Cell,
    GatedScanInputs,
    bounded_sqrt,
    gelu,
    one_minus_square_of_exp,
    sigmoid,
)
from pallas_kernels.gated_scan.gated_scan import gated_scan

__all__ = [
    "Cell",
    "GatedScanInputs",
    "bounded_sqrt",
    "gated_scan",
    "gelu",
    "one_minus_square_of_exp",
    "sigmoid",
]
