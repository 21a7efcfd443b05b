"""The gated delta rule, differentiable, forward, in reverse or both."""

from pallas_kernels.gated_delta_rule.gated_delta_rule import gated_delta_rule
from pallas_kernels.matrix_state.layout import DIRECTIONS, IMPLEMENTATIONS

__all__ = ["DIRECTIONS", "IMPLEMENTATIONS", "gated_delta_rule"]
