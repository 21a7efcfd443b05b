"""The first screen of the page: a sentence on the result, four figures, and accuracy by class."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from birdie_jax.reporting import curves
from birdie_jax.reporting.page_text import count, duration, fixed, percent
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.scalar_panels import (
    causal_arms,
    causal_validation,
    scalar_figure,
    unigram_entropy,
)
from birdie_jax.reporting.section import HeadlineFigure
from birdie_jax.reporting.sections.scalars import wall_seconds
from birdie_jax.reporting.svg import class_colour, css_colour

_BITS = "bits_per_byte"
# The share of right target tokens above which the sentence says "most".
_MOST = 0.5


@dataclass(frozen=True)
class ClassAccuracy:
    """The accuracy of a class of objectives on held-out text.

    Attributes:
        name: the name of the class.
        accuracy: the share of correctly predicted target tokens, averaged over arms.
        first: the accuracy at the first validation; for a new model this is chance.
        colour: the CSS colour of the class.
    """

    name: str
    accuracy: float
    first: float
    colour: str

    @property
    def text(self) -> str:
        """Both accuracies as text."""
        return f"{percent(self.accuracy, 0)}, at first {percent(self.first, 0)}"


def class_accuracies(run: RunRecord) -> list[ClassAccuracy]:
    """Return the validation accuracy of each class; empty without validations."""
    found = []
    for index, (group, arms) in enumerate(run.groups.items()):
        values = curves.mean_over_arms(run.metrics.arm_values["validation_accuracy"][:, arms])
        known = values[np.isfinite(values)]
        if len(known):
            name, colour = group.replace("_", " "), css_colour(class_colour(index))
            found.append(ClassAccuracy(name, float(known[-1]), float(known[0]), colour))
    return found


def verdict(run: RunRecord) -> str:
    """Return a few sentences about the quality of the run on text, objectives and tasks."""
    return " ".join(filter(None, (_of_text(run), _of_classes(class_accuracies(run)), *_of_tasks(run))))


def _causal_loss(run: RunRecord) -> float:
    return curves.last_finite(causal_validation(run)) if causal_arms(run) else math.nan


def _of_text(run: RunRecord) -> str:
    loss, entropy = _causal_loss(run), unigram_entropy(run)
    if not math.isfinite(loss):
        return ""
    start = f"The loss on held-out text is {fixed(loss, 2)} nats per token."
    if entropy is None:
        return start
    start = f"{start} Token frequencies alone give {fixed(entropy, 2)}"
    return f"{start}." if loss < entropy else f"{start}: the model has not learned to predict text."


def _of_classes(classes: Sequence[ClassAccuracy]) -> str:
    if not classes:
        return ""
    ordered = sorted(classes, key=lambda one: one.accuracy, reverse=True)
    learned = [f"{one.name} ({percent(one.accuracy, 0)})" for one in ordered if one.accuracy >= _MOST]
    others = [f"{one.name} ({percent(one.accuracy, 0)})" for one in ordered if one.accuracy < _MOST]
    if not learned:
        return f"The model predicts most tokens of no class; the best is {others[0]}."
    return f"The model predicts most tokens of {_listed(learned)}" + (
        f", and fewer of {_listed(others)}." if others else "."
    )


def _of_tasks(run: RunRecord) -> list[str]:
    return [
        f"{record.name.replace('_', ' ').capitalize()}: {record.exact:,} of {record.answers:,} answers are "
        "exactly right."
        for record in run.evaluations
        if record.exact is not None and record.answers
    ]


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def first_figures(run: RunRecord) -> list[HeadlineFigure]:
    """Return at most four different figures about the run's quality and cost."""
    metrics = run.metrics
    figures = [_quality(run)]
    tokens = curves.last_finite(metrics.scalar("tokens_seen"))
    if math.isfinite(tokens):
        planned = run.planned_steps
        remark = f"{run.last_step:,} steps" + ("" if planned is None else f" of {planned:,} planned")
        figures.append(HeadlineFigure("Tokens seen", count(tokens), remark))
    seconds = wall_seconds(metrics)
    if math.isfinite(seconds):
        machine = f"{run.starts[-1].devices} x {run.starts[-1].device}" if run.starts else ""
        figures.append(HeadlineFigure("Wall time", duration(seconds), machine))
    parameters = run.summary.get("parameters")
    if isinstance(parameters, int) and abs(parameters) < 1e300:
        figures.append(HeadlineFigure("Parameters", count(parameters)))
    return figures


def _quality(run: RunRecord) -> HeadlineFigure:
    for record in run.evaluations:
        bits = record.metrics.get(_BITS)
        if bits is not None:
            remark = f"{fixed(bits.low)} to {fixed(bits.high)}, {record.name.replace('_', ' ')}"
            return HeadlineFigure("Bits per byte", fixed(bits.mean), remark)
    loss = _causal_loss(run)
    if math.isfinite(loss):
        return HeadlineFigure("Held-out loss", fixed(loss), "nats a token, causal LM")
    return scalar_figure(run, "loss", "train loss", fixed)
