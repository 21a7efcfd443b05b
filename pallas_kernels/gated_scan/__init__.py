"""Gated recurrent layers without their projections: gates, linear recurrence and output gate in one scan.

A `Cell` defines the computation of a layer. The file of the layer defines its cell; this package scans it.
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
