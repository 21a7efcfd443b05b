"""The report of a run: one page that plots what its workdir has logged."""

from birdie_jax.reporting.page import write_report
from birdie_jax.reporting.record_error import RecordError

__all__ = ["RecordError", "write_report"]
