"""Section: every quantity of every arm over steps, with one group of panels per class."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from birdie_jax.reporting import curves
from birdie_jax.reporting.plots import Frame, Line, line_panel, spans_widely
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.scalar_panels import LOG, LOSS, causal_arms, unigram_entropy
from birdie_jax.reporting.section import LegendEntry, Panel, PanelGroup, Section, SectionKind
from birdie_jax.reporting.svg import CSS_DASHES, DASHES, class_colour, css_colour

_MAX_LEGEND_ARMS = 8  # the maximum number of arms of a class with a colour and a legend entry each
_SMALL = (380.0, 150.0)


@dataclass(frozen=True)
class _Series:
    """A quantity of the arms of one class at the same steps.

    Attributes:
        title: the name of the quantity.
        unit: the unit of the quantity.
        steps: the train step of each point.
        values: the value of each arm at each point.
        percent: whether the quantity is a share, in percent.
        stairs: whether a value holds until the next point.
        zero: whether the axis includes 0.
        reference: the value of a dashed line across the panel.
    """

    title: str
    unit: str
    steps: np.ndarray
    values: Float[np.ndarray, "points arms"]
    percent: bool = False
    stairs: bool = False
    zero: bool = False
    reference: float | None = None


def make_section(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of the arms' curves, or None if no class has several arms."""
    groups = _class_groups(run) if run.arms else []
    if not groups:
        return None
    return Section(
        anchor="arms-over-steps",
        link="Arms over steps",
        title="Arms over steps",
        introduction="Classes with several arms. Each line is an arm, shaded from dark to light in the "
        "order of the table; point at a line to see its name. In classes with more than eight arms, thick "
        "lines are the mean over arms. A train curve has a gap where no example of its arm was drawn.",
        groups=tuple(groups),
    )


def _class_groups(run: RunRecord) -> list[PanelGroup]:
    """Return the groups of panels of the classes with several arms."""
    values, steps = run.metrics.arm_values, run.metrics.steps
    weights = curves.token_weights(values["loss"], values["tokens"])
    rows = curves.decision_rows(values["validation_loss"])
    mixtures = curves.changed_rows(values["probability"])
    loss = curves.bin_lines(steps, values["loss"], weights)
    accuracy = curves.bin_lines(steps, values["accuracy"], weights)
    causal = set(causal_arms(run))
    class_groups = []
    for index, (group, arms) in enumerate(run.groups.items()):
        # A single arm has the curves of its class.
        if len(arms) == 1:
            continue
        entropy = unigram_entropy(run) if causal.intersection(arms) else None
        validation_loss, validation_accuracy, reward = (
            values[name][rows][:, arms] for name in ("validation_loss", "validation_accuracy", "reward")
        )
        probability = values["probability"][mixtures][:, arms]
        series = (
            _Series("Validation loss", LOSS, steps[rows], validation_loss, reference=entropy),
            _Series("Train loss", LOSS, loss.steps, loss.values[:, arms]),
            _Series(run.probability_title, "of each arm", steps[mixtures], probability, True, True),
            _Series("Train accuracy", "greedy", accuracy.steps, accuracy.values[:, arms], True),
            _Series("Validation accuracy", "greedy", steps[rows], validation_accuracy, True),
            _Series("Reward", "of each decision", steps[rows], reward, zero=True),
        )
        names = [run.arms[arm].name for arm in arms]
        legend = tuple(
            LegendEntry(name, css_colour(_shade(index, i, len(arms))), CSS_DASHES[_dash(i, len(arms))])
            for i, name in enumerate(names)
        )
        class_groups.append(
            PanelGroup(
                heading=group.replace("_", " "),
                remark=f"{len(arms)} arms",
                shown=1,
                colour=css_colour(class_colour(index)),
                legend=legend if 1 < len(arms) <= _MAX_LEGEND_ARMS else (),
                panels=tuple(_arm_panel(each, names, index, run.last_step, group) for each in series),
            )
        )
    return class_groups


def _arm_panel(series: _Series, names: list[str], group: int, last_step: int, label: str) -> Panel:
    many = len(names) > _MAX_LEGEND_ARMS
    lines = [
        Line(
            series.steps,
            series.values[:, i],
            _shade(group, i, len(names)),
            0.8 if many else 1.6,
            0.55 if many else 1.0,
            _dash(i, len(names)),
            tooltip=name,
            stairs=series.stairs,
        )
        for i, name in enumerate(names)
    ]
    if many:
        mean = curves.mean_over_arms(series.values)
        lines.append(
            Line(
                series.steps,
                mean,
                class_colour(group, 15),
                2.2,
                tooltip="mean over arms",
                stairs=series.stairs,
            )
        )
    log = series.unit == LOSS and spans_widely([series.values])
    frame = Frame(
        f"{series.title}, {label}",
        last_step,
        reference=series.reference,
        reference_label="unigram entropy",
        log=log,
        percent=series.percent,
        zero=series.zero,
        size=_SMALL,
    )
    svg = line_panel(lines, frame)
    return Panel(series.title, series.unit + (LOG if log else ""), svg, "" if svg else "No values yet.")


def _shade(group: int, arm: int, arms: int) -> str:
    if arms == 1:
        return class_colour(group)
    return class_colour(group, round(100 * arm / (arms - 1)))


def _dash(arm: int, arms: int) -> int:
    """Return the dash of an arm; dashes help to distinguish a few arms, because shades look similar."""
    return arm % len(DASHES) if 3 < arms <= _MAX_LEGEND_ARMS else 0


ARMS_OVER_STEPS = SectionKind(make_section)
