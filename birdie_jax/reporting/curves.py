"""Computes the points of a plot from logged lines: means over arms and lines, smoothing, decisions."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

Steps = Int[np.ndarray, " lines"]
Column = Float[np.ndarray, " lines"]
ArmMatrix = Float[np.ndarray, "lines arms"]

# The maximum number of points of a training curve: about one every two pixels of a panel.
MAX_POINTS = 160


@dataclass(frozen=True)
class Binned:
    """Means of consecutive lines.

    Attributes:
        steps: the last step of each bin.
        values: the mean of each bin and arm; NaN if the arm had no tokens.
        lines_per_bin: the number of lines in a bin.
    """

    steps: Float[np.ndarray, " bins"]
    values: Float[np.ndarray, "bins arms"]
    lines_per_bin: int


def bin_lines(steps: Steps, values: ArmMatrix, weights: ArmMatrix, max_points: int = MAX_POINTS) -> Binned:
    """Return weighted means over bins of lines, at most `max_points`; ignore non-finite values."""
    used = np.isfinite(values).any(axis=1)
    steps, values, weights = steps[used], values[used], weights[used]
    if not len(steps):
        return Binned(np.zeros(0), np.zeros((0, values.shape[1])), 1)
    per_bin = -(-len(steps) // max_points)
    starts = np.arange(0, len(steps), per_bin)
    ends = np.append(starts[1:], len(steps)) - 1
    weights = np.where(np.isfinite(values) & np.isfinite(weights), weights, 0.0)
    total = np.add.reduceat(np.where(weights > 0, values, 0.0) * weights, starts, axis=0)
    return Binned(
        steps[ends].astype(float), _divide(total, np.add.reduceat(weights, starts, axis=0)), per_bin
    )


def token_weights(values: ArmMatrix, tokens: ArmMatrix) -> ArmMatrix:
    """Return `tokens` as the weights of `values`, or equal weights for a run without token counts."""
    return tokens if np.isfinite(tokens).any() else np.ones_like(values)


def bin_group(steps: Steps, values: ArmMatrix, weights: ArmMatrix, max_points: int = MAX_POINTS) -> Binned:
    """Like `bin_lines`, for the weighted mean over all columns; the result has one column."""
    weights = np.where(np.isfinite(values) & np.isfinite(weights), weights, 0.0)
    total = weights.sum(axis=1, keepdims=True)
    mean = _divide((np.where(weights > 0, values, 0.0) * weights).sum(axis=1, keepdims=True), total)
    return bin_lines(steps, mean, total, max_points)


def mean_over_arms(values: Float[np.ndarray, "rows arms"]) -> Float[np.ndarray, " rows"]:
    """Return the mean over the arms with a finite value; NaN for rows without any."""
    finite = np.isfinite(values)
    return _divide(np.where(finite, values, 0.0).sum(axis=1), finite.sum(axis=1).astype(float))


def smooth(values: Float[np.ndarray, " points"], window: int) -> Float[np.ndarray, " points"]:
    """Return the centred moving mean over `window` points (fewer at the ends); ignore non-finite values."""
    finite = np.isfinite(values)
    ends = np.arange(1, len(values) + 1) + window // 2
    starts = np.clip(ends - window, 0, len(values))
    ends = np.clip(ends, 0, len(values))
    total = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    count = np.concatenate([[0.0], np.cumsum(finite)])
    return _divide(total[ends] - total[starts], count[ends] - count[starts])


def smoothing_window(points: int) -> int:
    """Return the number of points in the moving mean of a noisy curve: 2 % of all, or 1 for short runs."""
    return max(1, points // 50)


def decision_rows(validation_loss: ArmMatrix) -> Int[np.ndarray, " decisions"]:
    """Return the rows with validation losses."""
    return np.flatnonzero(np.isfinite(validation_loss).any(axis=1))


def mixture_after(
    probability: ArmMatrix, rows: Int[np.ndarray, " decisions"]
) -> Float[np.ndarray, "decisions arms"]:
    """Return the mixture after each decision, from the first later line that has one.

    A mixture takes effect at the first batch after its decision, so the decision's own line may still have
    the previous mixture. Without a later line, the last line with a mixture counts.
    """
    logged = np.flatnonzero(np.isfinite(probability).any(axis=1))
    if not len(logged):
        return np.full((len(rows), probability.shape[1]), np.nan)
    following = np.minimum(np.searchsorted(logged, rows, side="right"), len(logged) - 1)
    return probability[logged[following]]


def changed_rows(values: ArmMatrix) -> Int[np.ndarray, " rows"]:
    """Return the rows that differ from the previous logged row, and the last logged row."""
    logged = np.flatnonzero(np.isfinite(values).any(axis=1))
    if not len(logged):
        return logged
    known = values[logged]
    changed: Bool[np.ndarray, " rows"] = np.ones(len(logged), bool)
    changed[1:] = (~np.isclose(known[1:], known[:-1], rtol=1e-6, atol=0.0, equal_nan=True)).any(axis=1)
    changed[-1] = True
    return logged[changed]


def effective_arms(mixture: Float[np.ndarray, "rows arms"]) -> Float[np.ndarray, " rows"]:
    """Return exp(entropy), the number of equally likely arms with the same entropy."""
    share = np.where(np.isfinite(mixture) & (mixture > 0), mixture, 0.0)
    share = _divide(share, np.broadcast_to(share.sum(axis=1, keepdims=True), share.shape))
    share = np.where(share > 0, share, 1.0)
    return np.exp(-(share * np.log(share)).sum(axis=1))


def last_finite(values: Float[np.ndarray, " rows"]) -> float:
    """Return the last finite value, or NaN if there is none."""
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if len(finite) else float("nan")


def _divide(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
