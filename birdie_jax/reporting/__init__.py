"""The report of a run: one page that plots what its workdir has logged."""

from birdie_jax.reporting.json_records import RecordError
from birdie_jax.reporting.page import write_report

__all__ = ["RecordError", "write_report"]
