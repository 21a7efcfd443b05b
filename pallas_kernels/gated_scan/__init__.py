"""Gated recurrent layers between their projections: gates, linear recurrence and output gate as one."""

from pallas_kernels.gated_scan.cells import GATED_SSM, Cell
from pallas_kernels.gated_scan.gated_scan import gated_scan

__all__ = ["GATED_SSM", "Cell", "gated_scan"]
