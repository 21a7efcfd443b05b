"""Gated recurrent layers between their projections: gates, linear recurrence and output gate as one."""

from pallas_kernels.gated_scan.cells import BIRDIE_SSM, GATED_SSM, RG_LRU, Cell
from pallas_kernels.gated_scan.gated_scan import gated_scan

__all__ = ["BIRDIE_SSM", "GATED_SSM", "RG_LRU", "Cell", "gated_scan"]
