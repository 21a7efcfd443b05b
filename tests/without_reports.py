"""Runs that draw no report, a third of the processor time of a run of seconds."""

import birdie_jax.reporting


def prepare() -> None:
    """Have no run in this process, and in its forks, draw one."""
    birdie_jax.reporting.write_report = lambda workdir: "not drawn"
