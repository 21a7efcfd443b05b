"""The validation loss of causal language modelling, beside the entropy of single tokens."""

import numpy as np
from jaxtyping import Float

from birdie_jax.reporting import curves
from birdie_jax.reporting.numbers import NONE, fixed
from birdie_jax.reporting.plots import Frame, Line, line_panel
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.scalar_panels import LOSS
from birdie_jax.reporting.section import HeadlineFigure, Panel
from birdie_jax.reporting.theme import class_colour


def causal_arms(run: RunRecord) -> list[int]:
    """Return the indices of the arms whose objective is causal_lm."""
    return [index for index, arm in enumerate(run.arms) if arm.objective == "causal_lm"]


def causal_validation(run: RunRecord) -> Float[np.ndarray, " lines"]:
    """Return the mean validation loss of the causal arms on each line; NaN where none was measured."""
    return curves.mean_over_arms(run.metrics.arm_values["validation_loss"][:, causal_arms(run)])


def unigram_entropy(run: RunRecord) -> float | None:
    """Return the entropy of single tokens in the causal validation text; None if the summary lacks it."""
    value = run.summary.get("unigram_entropy")
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < 1e300 else None


def causal_panel(run: RunRecord) -> Panel:
    """Return the validation loss of the causal arms, with the entropy of single tokens for comparison."""
    title = "Validation loss, causal LM"
    if not causal_arms(run):
        return Panel(title, LOSS, "", "No arm of this run is causal language modelling.")
    values = causal_validation(run)
    measured = np.isfinite(values)
    entropy = unigram_entropy(run)
    group = list(run.groups).index(run.arms[causal_arms(run)[0]].group)
    line = Line(run.metrics.steps[measured], values[measured], class_colour(group), 2.0, end_dot=True)
    frame = Frame(title, run.last_step, reference=entropy, reference_label="unigram entropy")
    svg = line_panel([line], frame)
    if not svg:
        return Panel(title, LOSS, "", "Not measured yet.")
    note = (
        ""
        if entropy is None
        else f"Dashed: {entropy:.3f} nats, the loss of knowing token frequencies only."
    )
    return Panel(title, LOSS, svg, note)


def causal_figures(run: RunRecord) -> tuple[HeadlineFigure, ...]:
    """Return the last and the best validation loss of the causal arms."""
    values = causal_validation(run)
    measured = np.flatnonzero(np.isfinite(values))
    name = "Causal validation loss"
    if not causal_arms(run):
        return (HeadlineFigure(name, NONE, "no causal arm in the mixture"),)
    if not len(measured):
        return (HeadlineFigure(name, NONE, "not measured yet"),)
    last, best = float(values[measured[-1]]), measured[np.argmin(values[measured])]
    entropy = unigram_entropy(run)
    remark = f"perplexity {np.exp(last):,.1f}" if last < 20 else ""
    if entropy is not None:
        side = "below" if last < entropy else "above"
        remark += f"; {abs(entropy - last):.2f} {side} unigram entropy"
    best_loss, best_step = fixed(float(values[best])), f"at step {run.metrics.steps[best]:,}"
    return (
        HeadlineFigure(name, fixed(last), remark),
        HeadlineFigure("Best causal validation loss", best_loss, best_step),
    )
