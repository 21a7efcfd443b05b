"""Section: optimizer, throughput and the input pipeline."""

import numpy as np
from jaxtyping import Float

from birdie_jax.reporting import curves
from birdie_jax.reporting.headline import planned_steps
from birdie_jax.reporting.numbers import count, duration
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.scalar_panels import ScalarPlot, scalar_panel, scalar_panels
from birdie_jax.reporting.section import HeadlineFigure, PanelGroup, Section, SectionKind

_PLOTS = (
    ScalarPlot("tokens_per_second", "Throughput", "tokens a second"),
    ScalarPlot("learning_rate", "Learning rate", "at each logged step", smoothed=False),
    ScalarPlot("grad_norm", "Gradient norm", "global, before clipping", log_if_wide=True),
    ScalarPlot("padding_share", "Padding", "share of the batch's positions", percent=True),
    ScalarPlot("host_wait_seconds", "Host wait", "seconds waited for the next batch", log_if_wide=True),
)
_STEP_SECONDS = ScalarPlot("step_seconds", "step seconds")
# These are figures instead of panels.
_FIGURES = ("tokens_seen", "elapsed_seconds")


def make_section(run: RunRecord, scalars: tuple[str, ...]) -> Section:
    """Return the section of the optimizer and the machine."""
    panels = scalar_panels(run, _PLOTS)
    if _STEP_SECONDS.name in scalars:
        panels += (scalar_panel(run, _STEP_SECONDS),)
    return Section(
        anchor="machine",
        link="Machine",
        title="Optimizer and machine",
        groups=(PanelGroup(panels),),
        figures=_figures(run),
    )


def _figures(run: RunRecord) -> tuple[HeadlineFigure, ...]:
    metrics, planned = run.metrics, planned_steps(run)
    speed = metrics.scalar("tokens_per_second")
    known = speed[np.isfinite(speed)]
    median = float(np.median(known)) if len(known) else float("nan")
    remark = "" if planned is None else f"of {planned:,} planned"
    figures = [HeadlineFigure("Steps", f"{run.last_step:,}", remark)]
    if run.arms or "tokens_seen" in metrics.scalars:
        figures.append(
            HeadlineFigure("Tokens seen", count(curves.last_finite(metrics.scalar("tokens_seen"))))
        )
    if run.arms or len(known):
        figures.append(HeadlineFigure("Tokens a second", count(median), "median of the log lines"))
    if run.arms or "elapsed_seconds" in metrics.scalars:
        seconds = wall_seconds(metrics.scalar("elapsed_seconds"))
        figures.append(HeadlineFigure("Wall time", duration(seconds)))
    return tuple(figures)


def wall_seconds(elapsed: Float[np.ndarray, " lines"]) -> float:
    """Return the seconds that all attempts of the run took; where the clock falls back, one begins."""
    elapsed = elapsed[np.isfinite(elapsed)]
    if not len(elapsed):
        return float("nan")
    steps = np.diff(elapsed)
    return float(elapsed[0] + np.where(steps < 0, elapsed[1:], steps).sum())


MACHINE = SectionKind(make_section, scalars=(*(plot.name for plot in (*_PLOTS, _STEP_SECONDS)), *_FIGURES))
