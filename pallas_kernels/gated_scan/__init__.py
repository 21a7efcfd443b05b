"""Gated recurrent layers between their projections: gates, linear recurrence and output gate as one.

A `Cell` defines what a layer computes; the layer's file defines the cell. This package scans a cell.
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
