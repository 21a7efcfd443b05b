"""The page that sets runs side by side: curves, configurations, scores, and their differences."""

from birdie_jax.comparison.page import write_comparison

__all__ = ["write_comparison"]
