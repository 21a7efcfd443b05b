"""The page that compares runs: curves, configurations, scores and differences."""

from birdie_jax.comparison.page import write_comparison

__all__ = ["write_comparison"]
