"""The report of a run: one page that plots what its workdir has logged."""

from birdie_jax.reporting.page import follow_report, write_report

__all__ = ["follow_report", "write_report"]
