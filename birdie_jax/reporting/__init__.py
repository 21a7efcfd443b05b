"""From a run's workdir to one page: what it learned, what the bandit chose, and what it cost."""

from birdie_jax.reporting.errors import RecordError
from birdie_jax.reporting.page import write_report

__all__ = ["RecordError", "write_report"]
