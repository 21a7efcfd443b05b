"""The panels of the run as a whole: training, causal validation, optimizer and machine."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from birdie_jax.reporting import curves
from birdie_jax.reporting.plots import Frame, Line, line_panel
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.theme import class_colour

# Nats a token: every loss of the page.
LOSS = "nats a token"
LOG = ", log scale"


@dataclass(frozen=True)
class Panel:
    """A plot with its words.

    Attributes:
        title: what is shown.
        unit: of y.
        svg: the plot; empty if there is nothing to draw.
        note: below the plot: smoothing, reference, or why it is empty.
    """

    title: str
    unit: str
    svg: str
    note: str = ""


# Scalars of the run that have a panel of their own: name -> title, unit, logarithmic if it spans decades.
_MACHINE = {
    "tokens_per_second": ("Throughput", "tokens a second", False),
    "learning_rate": ("Learning rate", "at each logged step", False),
    "grad_norm": ("Gradient norm", "global, before clipping", True),
    "padding_share": ("Padding", "share of the batch's positions", False),
    "host_wait_seconds": ("Host wait", "seconds waited for the next batch", True),
}
_SHARES = ("padding_share",)
_OTHER_PANELS = ("loss", "accuracy", "tokens_seen", "elapsed_seconds")
_SMOOTHED_FROM = 60  # lines; a shorter run is shown as it is
_SAME_DECADES = 30.0  # a positive quantity that spans more is drawn on a logarithmic axis


def training_panels(run: RunRecord) -> list[Panel]:
    """Return train loss, train accuracy and the validation loss of causal language modelling."""
    return [
        _scalar_panel(run, "loss", "Train loss", LOSS, False),
        _scalar_panel(run, "accuracy", "Train accuracy", "share of target tokens, greedy", False),
        causal_panel(run),
    ]


def machine_panels(run: RunRecord) -> list[Panel]:
    """Return throughput, learning rate and the like, and any other scalar that the run logged."""
    panels = [_scalar_panel(run, name, *words) for name, words in _MACHINE.items()]
    for name in sorted(set(run.metrics.scalars) - set(_MACHINE) - set(_OTHER_PANELS)):
        panels.append(_scalar_panel(run, name, name.replace("_", " "), "as logged", False))
    return panels


def causal_arms(run: RunRecord) -> list[int]:
    """Return the indices of the arms whose objective is causal_lm."""
    return [index for index, arm in enumerate(run.arms) if arm.objective == "causal_lm"]


def causal_validation(run: RunRecord) -> Float[np.ndarray, " lines"]:
    """Return the mean validation loss of the causal arms on each line; NaN where none was measured."""
    return curves.mean_over_arms(run.metrics.arm_values["validation_loss"][:, causal_arms(run)])


def unigram_entropy(run: RunRecord) -> float | None:
    """Return the entropy of single tokens in the causal validation text, if the summary tells it."""
    value = run.summary.get("unigram_entropy")
    return float(value) if isinstance(value, int | float) and np.isfinite(value) else None


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
    frame = Frame(title, int(run.metrics.steps[-1]), reference=entropy, reference_label="unigram entropy")
    svg = line_panel([line], frame)
    if not svg:
        return Panel(title, LOSS, "", "Not measured yet.")
    note = (
        ""
        if entropy is None
        else f"Dashed: {entropy:.3f} nats, the loss of knowing token frequencies only."
    )
    return Panel(title, LOSS, svg, note)


def _scalar_panel(run: RunRecord, name: str, title: str, unit: str, log_if_wide: bool) -> Panel:
    column, steps = run.metrics.scalar(name), run.metrics.steps
    measured = np.isfinite(column)
    if not measured.any():
        return Panel(title, unit, "", f"Not logged ({name}).")
    column, steps = column[measured], steps[measured]
    log = bool(log_if_wide and column.min() > 0 and column.max() / column.min() > _SAME_DECADES)
    percent = name == "accuracy" or name in _SHARES
    frame = Frame(title, int(run.metrics.steps[-1]), log=log, percent=percent)
    if len(column) < _SMOOTHED_FROM or name == "learning_rate":
        return Panel(title, unit + (LOG if log else ""), line_panel([Line(steps, column)], frame))
    window = curves.smoothing_window(len(column))
    raw = curves.bin_lines(steps, column[:, None], np.ones((len(column), 1)), 4 * curves.MOST_POINTS)
    lines = [
        Line(raw.steps, raw.values[:, 0], width=0.9, opacity=0.35),
        Line(*_thinned(steps, curves.smooth(column, window)), width=1.8),
    ]
    note = f"Bold: moving mean over {window} log lines." if window > 1 else ""
    if note and raw.lines_per_bin > 1:
        note += f" Faint: means of {raw.lines_per_bin} lines."
    return Panel(title, unit + (LOG if log else ""), line_panel(lines, frame), note)


def _thinned(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keep every n-th point of a smooth curve, and its last."""
    kept = np.arange(len(steps) - 1, -1, -max(1, len(steps) // (2 * curves.MOST_POINTS)))[::-1]
    return steps[kept], values[kept]
