"""The state space duality (SSD) recurrence of Mamba-2, differentiable, forward, in reverse or both."""

from pallas_kernels.matrix_state.layout import DIRECTIONS, IMPLEMENTATIONS
from pallas_kernels.ssd.ssd import ssd

__all__ = ["DIRECTIONS", "IMPLEMENTATIONS", "ssd"]
