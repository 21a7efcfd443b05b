"""h[t] = a[t] * h[t-1] + x[t] along a sequence, differentiable, in either direction."""

from pallas_kernels.linear_scan.linear_scan import IMPLEMENTATIONS, linear_scan

__all__ = ["IMPLEMENTATIONS", "linear_scan"]
