"""The top of the page: what kind of run it is, how far it is, and the figures of its summary."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from birdie_jax.reporting import curves
from birdie_jax.reporting.numbers import count, percent
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.section import HeadlineFigure
from birdie_jax.storage.messages import shown

_RECENT_LINES = 20


@dataclass(frozen=True)
class Completion:
    """How far a run is.

    Attributes:
        complete: whether the summary says that the run ended as planned.
        text: the state of the run in words.
        share: the share of the planned steps that are done; None where their number is not known.
    """

    complete: bool
    text: str
    share: float | None


def run_completion(run: RunRecord) -> Completion:
    """Return whether the run is complete; only its own summary can say so."""
    last = run.last_step
    if run.summary.get("completed") is True:
        return Completion(True, f"Complete: {last:,} steps", 1.0)
    planned = planned_steps(run)
    if planned is None:
        return Completion(False, f"Not known to be complete: step {last:,}", None)
    share = min(1.0, last / planned)
    return Completion(False, f"Not complete: step {last:,} of {planned:,} ({percent(share)})", share)


def planned_steps(run: RunRecord) -> int | None:
    """Return the number of steps that the run is configured for; None where it has no such setting.

    Raises:
        RecordError: the run has arms, and its configuration lacks the setting or has no integer there.
    """
    name = "train.num_steps"
    planned = run.setting(name, int) if run.arms else run.find_setting(name)
    return planned if isinstance(planned, int) and planned > 0 else None


def describe_run(run: RunRecord) -> str:
    """Return the model, arms, classes and bandit policy of the run, as far as it has them."""
    if run.arms:
        arms, classes = len(run.arms), len(run.groups)
        model, policy = run.setting("model.name", str), run.setting("bandit.policy", str)
        return (
            f"{model.replace('_', ' ')}, {arms} {'arm' if arms == 1 else 'arms'} in {classes} "
            f"{'class' if classes == 1 else 'classes'}, bandit policy {policy}."
        )
    model, scalars = run.find_setting("model.name"), len(run.metrics.scalars)
    start = f"{model.replace('_', ' ')}, " if isinstance(model, str) else ""
    return f"{start}{scalars} {'scalar' if scalars == 1 else 'scalars'} logged."


def scalar_figure(run: RunRecord, scalar: str, name: str, form: Callable[[float], str]) -> HeadlineFigure:
    """Return the last value of a scalar, with the mean of its last lines."""
    which = "Final" if run_completion(run).complete else "Latest"
    column = run.metrics.scalar(scalar)
    return HeadlineFigure(f"{which} {name}", form(curves.last_finite(column)), _recent_mean(column, form))


def summary_figures(run: RunRecord) -> list[HeadlineFigure]:
    """Return the values of summary.json that have no other place on the page."""
    figures = []
    shown = {"completed", "unigram_entropy"}
    for name in ("parameters", "vocab_size"):
        if name in run.summary:
            shown.add(name)
            figures.append(HeadlineFigure(_title(name), _summary_value(run.summary[name])))
    for name, value in run.summary.items():
        if name not in shown and isinstance(value, int | float | str):
            figures.append(HeadlineFigure(_title(name), _summary_value(value), "from summary.json"))
    return figures


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _recent_mean(column: Float[np.ndarray, " lines"], form: Callable[[float], str]) -> str:
    known = column[np.isfinite(column)][-_RECENT_LINES:]
    if len(known) < 2:
        return ""
    return f"mean of the last {len(known)} lines {form(float(known.mean()))}"


def _summary_value(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    # More than a float holds is no count of anything.
    return count(value) if abs(value) < 1e300 else shown(value, 60)
