"""The state-space dual recurrence of Mamba-2, differentiable, in either direction or in both."""

from pallas_kernels.matrix_state.layout import DIRECTIONS, IMPLEMENTATIONS
from pallas_kernels.ssd.ssd import ssd

__all__ = ["DIRECTIONS", "IMPLEMENTATIONS", "ssd"]
