"""The report of a run: one page with plots of the metrics in its workdir."""

from birdie_jax.reporting.page import follow_report, write_report

__all__ = ["follow_report", "write_report"]
