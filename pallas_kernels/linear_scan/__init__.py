"""The linear recurrence h[t] = a[t] * h[t-1] + x[t], differentiable, forward, in reverse or both."""

from pallas_kernels.linear_scan.linear_scan import IMPLEMENTATIONS, bidirectional_scan, linear_scan

__all__ = ["IMPLEMENTATIONS", "bidirectional_scan", "linear_scan"]
