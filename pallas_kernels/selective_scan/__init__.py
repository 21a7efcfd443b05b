"""The selective scan of Mamba: differentiable, in one direction or in both."""

from pallas_kernels.selective_scan.inputs import MAX_GPU_STATES, SelectiveScanInputs, max_tpu_states
from pallas_kernels.selective_scan.selective_scan import DIRECTIONS, IMPLEMENTATIONS, selective_scan

__all__ = [
    "DIRECTIONS",
    "IMPLEMENTATIONS",
    "MAX_GPU_STATES",
    "SelectiveScanInputs",
    "max_tpu_states",
    "selective_scan",
]
