"""The panels that tell arms apart: small multiples of each class, and the bandit's decisions."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from birdie_jax.reporting import curves
from birdie_jax.reporting.heatmap import Heat, heatmap, loss_heat, probability_heat, reward_heat
from birdie_jax.reporting.panels import LOG, LOSS, Panel, causal_arms, unigram_entropy
from birdie_jax.reporting.plots import Frame, Line, area_panel, line_panel, spans_widely
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.theme import CSS_DASHES, DASHES, class_colour, class_dash, css_colour

_TOLD_APART = 8  # arms of a class that get a colour and a legend entry each
_SMALL = (380.0, 150.0)


@dataclass(frozen=True)
class LegendEntry:
    """A name with its stroke: CSS colour and dash pattern."""

    name: str
    colour: str
    dash: str


@dataclass(frozen=True)
class ClassDetail:
    """The panels of one class.

    Attributes:
        name: of the class.
        arms: how many it has.
        colour: CSS colour.
        legend: one entry an arm, or none if there are too many to tell apart.
        panels: a quantity each, a line an arm.
    """

    name: str
    arms: int
    colour: str
    legend: tuple[LegendEntry, ...]
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class _Series:
    """A quantity of the arms of one class at the same steps."""

    title: str
    unit: str
    steps: np.ndarray
    values: Float[np.ndarray, "points arms"]
    percent: bool = False
    stairs: bool = False
    zero: bool = False
    reference: float | None = None


def class_legend(run: RunRecord) -> tuple[LegendEntry, ...]:
    """Return the colour of each class, the same on the whole page."""
    return tuple(
        LegendEntry(group, css_colour(class_colour(index)), CSS_DASHES[class_dash(index)])
        for index, group in enumerate(run.groups)
    )


def class_details(run: RunRecord) -> list[ClassDetail]:
    """Return, for each class, every quantity of every arm over steps."""
    values, steps = run.metrics.arm_values, run.metrics.steps
    weights = curves.token_weights(values["loss"], values["tokens"])
    rows = curves.decision_rows(values["validation_loss"])
    mixtures = curves.changed_rows(values["probability"])
    loss = curves.bin_lines(steps, values["loss"], weights)
    accuracy = curves.bin_lines(steps, values["accuracy"], weights)
    causal = set(causal_arms(run))
    details = []
    for index, (group, arms) in enumerate(run.groups.items()):
        entropy = unigram_entropy(run) if causal.intersection(arms) else None
        validation_loss, validation_accuracy, reward = (
            values[name][rows][:, arms] for name in ("validation_loss", "validation_accuracy", "reward")
        )
        probability = values["probability"][mixtures][:, arms]
        series = (
            _Series("Train loss", LOSS, loss.steps, loss.values[:, arms]),
            _Series("Validation loss", LOSS, steps[rows], validation_loss, reference=entropy),
            _Series("Sampling probability", "of each arm", steps[mixtures], probability, True, True),
            _Series("Train accuracy", "greedy", accuracy.steps, accuracy.values[:, arms], True),
            _Series("Validation accuracy", "greedy", steps[rows], validation_accuracy, True),
            _Series("Reward", "of each decision", steps[rows], reward, zero=True),
        )
        names = [run.arms[arm].name for arm in arms]
        told_apart = len(arms) <= _TOLD_APART
        legend = tuple(
            LegendEntry(name, css_colour(_shade(index, i, len(arms))), CSS_DASHES[_dash(i, len(arms))])
            for i, name in enumerate(names)
        )
        details.append(
            ClassDetail(
                name=group,
                arms=len(arms),
                colour=css_colour(class_colour(index)),
                legend=legend if told_apart and len(arms) > 1 else (),
                panels=tuple(_arm_panel(each, names, index, int(steps[-1]), group) for each in series),
            )
        )
    return details


def bandit_panels(run: RunRecord) -> list[Panel]:
    """Return how the mixture moved: shares of the classes, of their tokens, and how varied it was."""
    values, steps = run.metrics.arm_values, run.metrics.steps
    last_step = int(steps[-1])
    groups = run.groups
    mixtures = curves.changed_rows(values["probability"])
    probability = values["probability"][mixtures]
    styles = [
        Line(np.zeros(0), np.zeros(0), class_colour(i), dash=class_dash(i), tip=group, stairs=True)
        for i, group in enumerate(groups)
    ]
    shares = np.stack([np.nansum(probability[:, arms], axis=1) for arms in groups.values()], axis=1)
    tokens = np.nan_to_num(values["tokens"])
    class_tokens = np.stack([tokens[:, arms].sum(axis=1) for arms in groups.values()], axis=1)
    binned = curves.bin_lines(steps, class_tokens, np.ones_like(class_tokens), 80)
    empty = "No values yet."
    mixture = area_panel(
        steps[mixtures], shares, styles, Frame("Mixture by class", last_step, percent=True)
    )
    seen = area_panel(
        binned.steps, binned.values, styles, Frame("Tokens by class", last_step, percent=True)
    )
    variety_frame = Frame(
        "Effective number of arms",
        last_step,
        (0.0, 1.2 * len(run.arms)),
        reference=float(len(run.arms)),
        reference_label=f"{len(run.arms)} arms",
    )
    variety = line_panel(
        [Line(steps[mixtures], curves.effective_arms(probability), stairs=True)], variety_frame
    )
    meaning = "exp of the mixture's entropy: so many equally likely arms would be as varied."
    return [
        Panel("Mixture", "sampling probability by class", mixture, "" if mixture else empty),
        Panel("Tokens", "share of target tokens by class", seen, "" if seen else empty),
        Panel("Variety", "effective number of arms", variety, meaning if variety else empty),
    ]


def decision_map(run: RunRecord) -> str:
    """Return the map of all arms by all decisions; empty before the first decision.

    A decision is a measured line that has a later or equal mixture; quantities that were never logged,
    such as rewards under a fixed mixture, are left out.
    """
    values, steps = run.metrics.arm_values, run.metrics.steps
    rows = curves.decision_rows(values["validation_loss"])
    if not len(rows):
        return ""
    heats: list[Heat] = []
    mixture = curves.mixture_after(values["probability"], rows)
    if (mixture > 0).any():
        heats.append(probability_heat(mixture))
    if np.isfinite(values["reward"][rows]).any():
        heats.append(reward_heat(values["reward"][rows]))
    heats.append(loss_heat(values["validation_loss"][rows]))
    index_of = {group: index for index, group in enumerate(run.groups)}
    return heatmap(
        heats, [arm.name for arm in run.arms], [index_of[arm.group] for arm in run.arms], steps[rows]
    )


def decision_steps(run: RunRecord) -> Int[np.ndarray, " decisions"]:
    """Return the steps at which rewards were given, i.e. at which a bandit had something to go by."""
    return run.metrics.steps[curves.decision_rows(run.metrics.arm_values["reward"])]


def _arm_panel(series: _Series, names: list[str], group: int, last_step: int, label: str) -> Panel:
    many = len(names) > _TOLD_APART
    lines = [
        Line(
            series.steps,
            series.values[:, i],
            _shade(group, i, len(names)),
            0.8 if many else 1.6,
            0.55 if many else 1.0,
            _dash(i, len(names)),
            tip=name,
            stairs=series.stairs,
        )
        for i, name in enumerate(names)
    ]
    if many:
        mean = curves.mean_over_arms(series.values)
        lines.append(
            Line(
                series.steps, mean, class_colour(group, 15), 2.2, tip="mean over arms", stairs=series.stairs
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
    """Few arms also differ in their dashes, as shades of one colour are near to each other."""
    return arm % len(DASHES) if 3 < arms <= _TOLD_APART else 0
