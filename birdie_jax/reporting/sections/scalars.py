"""Sections of scalars: training curves, optimizer and machine, and the remaining scalars."""

import numpy as np

from birdie_jax.reporting import curves
from birdie_jax.reporting.metrics_table import MetricsTable
from birdie_jax.reporting.page_text import count, duration, fixed, percent
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.scalar_panels import (
    LOSS,
    ScalarPlot,
    causal_figures,
    causal_panel,
    scalar_figure,
    scalar_panel,
    scalar_panels,
)
from birdie_jax.reporting.section import HeadlineFigure, PanelGroup, Section, SectionKind
from birdie_jax.reporting.svg import ACCENT, css_colour
from birdie_jax.storage.metric_lines import BETWEEN_STARTS, TIME_PREFIX


def make_training(run: RunRecord, scalars: tuple[str, ...]) -> Section:
    """Return the section of the training curves."""
    # Only a language model's loss is known to be in nats per token.
    unit = LOSS if run.arms else "as logged"
    panels = scalar_panels(
        run,
        (
            ScalarPlot("loss", "Train loss", unit),
            ScalarPlot("accuracy", "Train accuracy", "share of target tokens, greedy", percent=True),
        ),
    )
    figures = tuple(
        scalar_figure(run, name, title, form)
        for name, title, form in (("loss", "train loss", fixed), ("accuracy", "train accuracy", percent))
        if run.arms or name in scalars
    )
    if run.arms:
        panels += (causal_panel(run),)
        figures += causal_figures(run)
    return Section(
        anchor="training",
        link="Training",
        title="Training",
        introduction="Curves are over train steps, unless their title names another quantity.",
        groups=(PanelGroup(panels),),
        figures=figures,
    )


TRAINING = SectionKind(make_training, scalars=("loss", "accuracy"))


_PLOTS = (
    ScalarPlot("tokens_per_second", "Throughput", "tokens a second"),
    ScalarPlot("learning_rate", "Learning rate", "at each logged step", smoothed=False),
    ScalarPlot("grad_norm", "Gradient norm", "global, before clipping", log_if_wide=True),
    ScalarPlot("padding_share", "Padding", "share of the batch's positions", percent=True),
    ScalarPlot("host_wait_seconds", "Host wait", "seconds waited for the next batch", log_if_wide=True),
)
# These get a panel only if they were logged: MFU requires a chip with a known peak.
_LOGGED = (
    ScalarPlot("step_seconds", "step seconds"),
    ScalarPlot("mfu", "MFU", "the model's FLOPs, as a share of the bfloat16 peak", percent=True),
)
# The page shows these as figures.
_FIGURES = ("tokens_seen", "elapsed_seconds")


def make_machine(run: RunRecord, scalars: tuple[str, ...]) -> Section:
    """Return the section of the optimizer and the machine."""
    panels = scalar_panels(run, _PLOTS)
    panels += tuple(scalar_panel(run, plot) for plot in _LOGGED if plot.name in scalars)
    return Section(
        anchor="machine",
        link="Machine",
        title="Optimizer and machine",
        groups=(PanelGroup(panels),),
        figures=_machine_figures(run),
    )


def _machine_figures(run: RunRecord) -> tuple[HeadlineFigure, ...]:
    metrics, planned = run.metrics, run.planned_steps
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
        figures.append(HeadlineFigure("Wall time", duration(wall_seconds(metrics))))
    return tuple(figures)


def wall_seconds(metrics: MetricsTable) -> float:
    """Return the seconds in which a run ran, over all its starts; NaN if no line has them.

    Older runs did not log these sums. Of them, only the kept lines of each start count, and a start is only
    recognised where `elapsed_seconds` falls.
    """
    times = [name for name in metrics.scalars if name.startswith(TIME_PREFIX) and name != BETWEEN_STARTS]
    if times:
        return sum(curves.last_finite(metrics.scalar(name)) for name in times)
    elapsed = metrics.scalar("elapsed_seconds")
    elapsed = elapsed[np.isfinite(elapsed)]
    if not len(elapsed):
        return float("nan")
    steps = np.diff(elapsed)
    return float(elapsed[0] + np.where(steps < 0, elapsed[1:], steps).sum())


MACHINE = SectionKind(make_machine, scalars=(*(plot.name for plot in (*_PLOTS, *_LOGGED)), *_FIGURES))


def make_other_scalars(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of `scalars`, or None if there are none."""
    groups: dict[str, list[str]] = {}
    for name in scalars:
        groups.setdefault(name.partition("/")[0] if "/" in name else "", []).append(name)
    if not groups:
        return None
    return Section(
        anchor="other-scalars",
        link="Other scalars",
        title="Other scalars",
        introduction="The other scalars of metrics.jsonl, as logged.",
        groups=tuple(
            PanelGroup(
                tuple(scalar_panel(run, ScalarPlot(name, name.replace("_", " "))) for name in names),
                heading=heading,
                remark=f"{len(names)} {'scalar' if len(names) == 1 else 'scalars'}" if heading else "",
                colour=css_colour(ACCENT),
            )
            for heading, names in sorted(groups.items())
        ),
    )


OTHER_SCALARS = SectionKind(make_other_scalars, scalars=("*",))
