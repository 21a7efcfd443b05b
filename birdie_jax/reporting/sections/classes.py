"""Section: the panels of the papers' Figure 3, one per quantity, with a line per class of objectives."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from birdie_jax.reporting import curves
from birdie_jax.reporting.plots import Frame, Line, class_legend, line_panel, spans_widely
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.scalar_panels import LOG, LOSS
from birdie_jax.reporting.section import Panel, PanelGroup, Section, SectionKind
from birdie_jax.reporting.svg import class_colour, class_dash

_LABELLED = 14  # the maximum number of labels that fit next to a panel
_SMOOTHED_FROM = 30  # the minimum number of mixtures for smoothing


@dataclass(frozen=True)
class _Curve:
    """The curve of a class in a panel.

    Attributes:
        steps: the train step of each point.
        values: the value of each point.
        stairs: whether a value holds until the next point.
    """

    steps: np.ndarray
    values: Float[np.ndarray, " points"]
    stairs: bool = False


def make_section(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of the classes, or None if the run has no arms."""
    if not run.arms:
        return None
    return Section(
        anchor="classes",
        link="Classes",
        title="Classes of objectives",
        introduction="Curves are means over the arms of a class, as in Figure 3 of the Birdie paper. A "
        "class has one colour on the whole page.",
        legend=class_legend(run),
        groups=(PanelGroup(tuple(_class_panels(run))),),
    )


def _class_panels(run: RunRecord) -> list[Panel]:
    """Return panels of train loss and accuracy, sampling probability, validation, and reward."""
    probability, probability_note = _probability_curves(run)
    loss, per_bin = _training_curves(run, "loss")
    accuracy, _ = _training_curves(run, "accuracy")
    weighted = "Weighted by target tokens."
    if per_bin > 1:
        weighted += f" A point is the mean of {per_bin} log lines."
    progress = "Of the change in validation loss since the decision before; positive is progress."
    of_arms = "mean over arms"
    return [
        _panel(run, "Train loss", LOSS, loss, note=weighted),
        _panel(
            run, "Train accuracy", "greedy, share of target tokens", accuracy, percent=True, note=weighted
        ),
        _panel(
            run, run.probability_title, "sum over arms", probability, percent=True, note=probability_note
        ),
        _panel(
            run, "Validation loss", LOSS, _validation_curves(run, "validation_loss"), note="Mean over arms."
        ),
        _panel(
            run,
            "Validation accuracy",
            "greedy",
            _validation_curves(run, "validation_accuracy"),
            percent=True,
            note="Mean over arms.",
        ),
        _panel(run, "Reward", of_arms, _validation_curves(run, "reward"), zero=True, note=progress),
    ]


def _panel(
    run: RunRecord,
    title: str,
    unit: str,
    class_curves: list[_Curve],
    *,
    percent: bool = False,
    zero: bool = False,
    note: str = "",
) -> Panel:
    lines = [
        Line(
            curve.steps,
            curve.values,
            class_colour(index),
            1.8,
            dash=class_dash(index),
            tooltip=group,
            stairs=curve.stairs,
            end_dot=True,
            label=group.replace("_", " ") if len(run.groups) <= _LABELLED else "",
        )
        for index, (group, curve) in enumerate(zip(run.groups, class_curves, strict=True))
    ]
    log = unit == LOSS and spans_widely([curve.values for curve in class_curves])
    frame = Frame(title, run.last_step, log=log, percent=percent, zero=zero)
    svg = line_panel(lines, frame)
    return Panel(title, unit + (LOG if log else ""), svg, note if svg else "No values yet.")


def _training_curves(run: RunRecord, name: str) -> tuple[list[_Curve], int]:
    """Return each class's mean over its target tokens, and the maximum number of lines per point."""
    values = run.metrics.arm_values
    weights = curves.token_weights(values["loss"], values["tokens"])
    binned = [
        curves.bin_group(run.metrics.steps, values[name][:, arms], weights[:, arms])
        for arms in run.groups.values()
    ]
    return [_Curve(each.steps, each.values[:, 0]) for each in binned], max(
        each.lines_per_bin for each in binned
    )


def _validation_curves(run: RunRecord, name: str) -> list[_Curve]:
    rows = curves.decision_rows(run.metrics.arm_values["validation_loss"])
    measured = run.metrics.arm_values[name][rows]
    return [
        _Curve(run.metrics.steps[rows], curves.mean_over_arms(measured[:, arms]))
        for arms in run.groups.values()
    ]


def _probability_curves(run: RunRecord) -> tuple[list[_Curve], str]:
    """Return each class's probability at every mixture, smoothed for a long run, and a note."""
    probability = run.metrics.arm_values["probability"]
    rows = curves.changed_rows(probability)
    window = max(1, len(rows) // 12) if len(rows) >= _SMOOTHED_FROM else 1
    totals = [np.nansum(probability[rows][:, arms], axis=1) for arms in run.groups.values()]
    class_curves = [
        _Curve(run.metrics.steps[rows], curves.smooth(total, window), stairs=window == 1)
        for total in totals
    ]
    note = f"Moving mean over {window} mixtures; each of them is drawn under Bandit." if window > 1 else ""
    return class_curves, note


CLASSES = SectionKind(make_section)
