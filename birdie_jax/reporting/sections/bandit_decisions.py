"""Section: the mixtures that the bandit chose, and every arm at every decision."""

import numpy as np
from jaxtyping import Int

from birdie_jax.reporting import curves
from birdie_jax.reporting.heatmap import (
    Heatmap,
    draw_heatmaps,
    loss_heatmap,
    probability_heatmap,
    reward_heatmap,
)
from birdie_jax.reporting.numbers import probability_title
from birdie_jax.reporting.plots import Frame, Line, area_panel, class_legend, line_panel
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.section import Panel, PanelGroup, Section, SectionKind
from birdie_jax.reporting.theme import class_colour, class_dash


def make_section(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of the bandit; None where the run has no arms."""
    if not run.arms:
        return None
    panels, heatmaps = _bandit_panels(run), _decision_heatmaps(run)
    unit = "a row an arm, a column a validation, in the order in which they came"
    return Section(
        anchor="bandit",
        link="Bandit",
        title="Bandit",
        introduction=_introduction(run),
        legend=class_legend(run),
        groups=(PanelGroup(panels),),
        wide_panel=Panel("Every arm at every validation", unit, heatmaps) if heatmaps else None,
    )


def _introduction(run: RunRecord) -> str:
    policy, every_steps = run.setting("bandit.policy", str), run.setting("bandit.every_steps", int)
    rewarded = _rewarded_steps(run)
    if not len(rewarded):
        return (
            f"No rewarded decision so far. Policy {policy}; arms are validated every {every_steps:,} steps."
        )
    decisions = "rewarded decision" if len(rewarded) == 1 else "rewarded decisions"
    return (
        f"Policy {policy}, every {every_steps:,} steps: {len(rewarded)} {decisions}, the last at step "
        f"{rewarded[-1]:,}."
    )


def _bandit_panels(run: RunRecord) -> tuple[Panel, ...]:
    """Return the classes' shares of the mixture, of the tokens, and the effective number of arms."""
    values, steps = run.metrics.arm_values, run.metrics.steps
    last_step = run.last_step
    groups = run.groups
    mixtures = curves.changed_rows(values["probability"])
    probability = values["probability"][mixtures]
    styles = [
        Line(np.zeros(0), np.zeros(0), class_colour(i), dash=class_dash(i), tooltip=group, stairs=True)
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
    return (
        Panel("Mixture", f"{probability_title(run).lower()} by class", mixture, "" if mixture else empty),
        Panel("Tokens", "share of target tokens by class", seen, "" if seen else empty),
        Panel("Variety", "effective number of arms", variety, meaning if variety else empty),
    )


def _decision_heatmaps(run: RunRecord) -> str:
    """Return the heatmaps of all arms by all decisions; empty before the first decision.

    A decision is a measured line that has a later or equal mixture; quantities that were never logged,
    such as rewards under a fixed mixture, are left out.
    """
    values, steps = run.metrics.arm_values, run.metrics.steps
    rows = curves.decision_rows(values["validation_loss"])
    if not len(rows):
        return ""
    heatmaps: list[Heatmap] = []
    mixture = curves.mixture_after(values["probability"], rows)
    if (mixture > 0).any():
        heatmaps.append(probability_heatmap(mixture, probability_title(run)))
    if np.isfinite(values["reward"][rows]).any():
        heatmaps.append(reward_heatmap(values["reward"][rows]))
    heatmaps.append(loss_heatmap(values["validation_loss"][rows]))
    index_of = {group: index for index, group in enumerate(run.groups)}
    return draw_heatmaps(
        heatmaps, [arm.name for arm in run.arms], [index_of[arm.group] for arm in run.arms], steps[rows]
    )


def _rewarded_steps(run: RunRecord) -> Int[np.ndarray, " decisions"]:
    """Return the steps at which the bandit was given rewards."""
    return run.metrics.steps[curves.decision_rows(run.metrics.arm_values["reward"])]


BANDIT = SectionKind(make_section)
