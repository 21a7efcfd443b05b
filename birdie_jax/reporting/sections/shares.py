"""Section: each arm's expected and measured shares of examples, positions and loss."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from birdie_jax.reporting.page_text import percent
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.section import Section, SectionKind
from birdie_jax.reporting.svg import class_colour, css_colour

_MAX_OPEN_ARMS = 16  # the maximum number of arms to show without folding them below their classes
# A quantity of arms.json, its quantity in metrics.jsonl, and its name on the page.
_QUANTITIES = (
    ("examples", "examples", "examples"),
    ("positions", "positions", "positions"),
    ("target_tokens", "tokens", "loss (target tokens)"),
)


@dataclass(frozen=True)
class ShareCell:
    """A share as text and as the length of a bar.

    Attributes:
        text: the share in percent; a dash if unknown.
        bar: the length of the bar in percent of the longest bar of the table.
    """

    text: str
    bar: float


@dataclass(frozen=True)
class ShareRow:
    """The shares of an arm or a class.

    Attributes:
        name: the name of the arm or class.
        colour: the CSS colour of the class.
        cells: the expected and the measured share of each quantity.
    """

    name: str
    colour: str
    cells: tuple[ShareCell, ...]


def make_section(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of shares, or None if the run has no arms."""
    if not run.arms:
        return None
    columns = [each for quantity in _QUANTITIES for each in _shares(run, *quantity[:2])]
    groups = list(run.groups.values())
    colours = [css_colour(class_colour(index)) for index in range(len(groups))]
    class_of = {arm: index for index, arms in enumerate(groups) for arm in arms}
    arms = _rows(
        [arm.name for arm in run.arms],
        [colours[class_of[arm]] for arm in range(len(run.arms))],
        columns,
    )
    by_class = [np.array([column[arms].sum() for arms in groups]) for column in columns]
    classes = _rows(list(run.groups), colours, by_class)
    return Section(
        anchor="shares",
        link="Shares",
        title="Shares of examples, positions and loss",
        introduction=_introduction(run),
        template="shares.html",
        values={
            "quantities": [name for _, _, name in _QUANTITIES],
            "classes": classes if len(classes) < len(arms) else [],
            "arms": arms,
            "folded": len(arms) > _MAX_OPEN_ARMS,
        },
    )


def _introduction(run: RunRecord) -> str:
    unit = "target tokens" if run.has_token_shares else "examples"
    counted = sum(arm.expected_shares.counted_examples for arm in run.arms if arm.expected_shares)
    expected = (
        f"Expected: under the initial mixture, estimated from {counted:,} examples of the training text."
        if counted
        else "The run did not estimate expected shares when it began."
    )
    return (
        f"The mixture has shares of {unit} (config.objectives.shares_of). The loss is a mean over target "
        "tokens, so an arm's share of them is its share of the loss. Its share of positions, context and "
        f"target, is its share of the time. {expected} Measured: over all logged steps."
    )


def _shares(run: RunRecord, expected: str, measured: str) -> list[Float[np.ndarray, " arms"]]:
    """Return the expected and the measured share of each arm; NaN if unknown."""
    nothing = np.full(len(run.arms), np.nan)
    records = [arm.expected_shares for arm in run.arms]
    known = [getattr(record, expected) if record else np.nan for record in records]
    sums = np.nansum(run.metrics.arm_values[measured], axis=0)
    return [np.array(known, np.float64), sums / sums.sum() if sums.sum() > 0 else nothing]


def _rows(
    names: Sequence[str], colours: Sequence[str], columns: Sequence[Float[np.ndarray, " rows"]]
) -> list[ShareRow]:
    longest = max((value for column in columns for value in column if np.isfinite(value)), default=1.0)
    return [
        ShareRow(name, colour, tuple(_cell(float(column[row]), longest) for column in columns))
        for row, (name, colour) in enumerate(zip(names, colours, strict=True))
    ]


def _cell(share: float, longest: float) -> ShareCell:
    is_drawn = np.isfinite(share) and longest > 0
    return ShareCell(percent(share), round(100 * share / longest, 1) if is_drawn else 0.0)


SHARES = SectionKind(make_section)
