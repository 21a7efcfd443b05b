"""Markdown tables, and cells that several studies share."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from birdie_jax.comparison.seed_interval import seed_interval
from birdie_jax.evaluation_record import Interval

HEAD_OF_PREDICTIONS = ("correlation over decisions", "predicted, mean of the second half", "earned")
_HOUR = 3600.0
_DECIMALS = 12


def percentage(share: float) -> float:
    """Return a share in percent, without its last bits, so halves round alike on all processors."""
    return round(100 * share, 9)


def section(title: str, text: str) -> str:
    """Return a section of a page, with its heading."""
    return f"### {title}\n\n{text}"


def rows_of_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


def percent(interval: Interval) -> str:
    """Return a mean share with its interval, in per cent."""
    return f"{100 * interval.mean:.1f} ({100 * interval.low:.1f} .. {100 * interval.high:.1f})"


def mean_over_seeds(values: Sequence[float], form: str, unit: str = "") -> str:
    """Return the mean of one value per seed, with its 95 % t-interval if there are two seeds or more.

    Args:
        values: the values, or paired differences.
        form: the format of a number, such as ".3f".
        unit: text after the mean.
    """
    # A sum that rounds to 1e-16 is 0.
    mean = f"{np.round(np.mean(values), _DECIMALS) + 0.0:{form}}{unit}"
    if len(values) < 2:
        return mean
    interval = seed_interval(np.array(values))
    return f"{mean} ({interval.low:{form}} .. {interval.high:{form}})"


class Predictions(NamedTuple):
    """How the predicted rewards of mixtures compare with the earned ones.

    Attributes:
        correlation: their correlation over decisions.
        predicted: the mean prediction of the second half of the decisions.
        earned: the mean earned reward of the same half.
    """

    correlation: float
    predicted: float
    earned: float


def compare_predictions(predicted: Sequence[float], earned: Sequence[float]) -> Predictions:
    """Compare predicted rewards with earned ones of the same mixtures."""
    both = np.array([predicted, earned])
    return Predictions(float(np.corrcoef(both)[0, 1]), *both[:, both.shape[1] // 2 :].mean(axis=1))


def cells_of_predictions(predicted: Sequence[float], earned: Sequence[float]) -> list[str]:
    """Return the cells of `compare_predictions`."""
    found = compare_predictions(predicted, earned)
    return [f"{found.correlation:.2f}", f"{found.predicted:+.2f}", f"{found.earned:+.2f}"]


def hours(seconds: float) -> str:
    """Return seconds as hours, with two decimals."""
    return f"{seconds / _HOUR:.2f}"


def cells_of_circumstances(result: Mapping[str, Any]) -> list[str]:
    """Return the number of cores, the commit and the date of a run."""
    found = result["circumstances"]
    return [str(found["machine"]["cores_used"]), (found["commit"] or "")[:10], found["date"][:10]]
