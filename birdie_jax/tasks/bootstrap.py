"""Means with bootstrap intervals, of answers and of differences between two models' answers.

Percentile intervals of resampled means (Efron 1979): answers are drawn with replacement, those of two
models together, question by question.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from birdie_jax.evaluation_record import Interval

_RESAMPLES = 2000
# Resamples whose counts are held at a time, in numbers.
_MAX_COUNTS = 1 << 22
_TAILS = (2.5, 97.5)

Scores = Float[np.ndarray, "answers metrics"]
Weights = Float[np.ndarray, " answers"]
# Means of metrics -> figures that follow from each row of them.
Derive = Callable[[Float[np.ndarray, "samples metrics"]], Float[np.ndarray, "samples derived"]]


def bootstrap_means(
    scores: Scores, weights: Weights, seed: int = 0, derive: Derive | None = None
) -> list[Interval]:
    """Return the weighted mean of each metric with its 95 % interval, then the derived metrics.

    Args:
        scores: the scores of each answer; at least one answer.
        weights: what each answer counts, not all 0.
        seed: the seed of the resamples.
        derive: a function from means to figures that follow from them; None = nothing follows.

    Raises:
        ValueError: there is no answer, or no weight.
    """
    total = weights.sum()
    if not total > 0:
        raise ValueError(
            f"bootstrap: found {len(scores)} answers of weight {total}; allowed: a weight above 0"
        )
    weighted = np.concatenate([scores * weights[:, None], weights[:, None]], axis=1)
    sums = _resampled_sums(weighted, seed)
    # All answers of a resample may have weight 0.
    sums = sums[sums[:, -1] > 0]
    resampled = sums[:, :-1] / sums[:, -1:]
    means = weighted[:, :-1].sum(axis=0) / total
    return _intervals(_with_derived(means[None], derive)[0], _with_derived(resampled, derive))


def bootstrap_differences(
    first: Scores,
    second: Scores,
    first_weights: Weights,
    second_weights: Weights,
    seed: int = 0,
    *,
    derive: Derive | None = None,
) -> list[Interval]:
    """Return the second mean minus the first of each metric, with the 95 % interval of paired answers.

    The differences of the metrics derived from each model's means follow.

    Args:
        first: the scores of one model's answers.
        second: the scores of the other model's answers to the same questions.
        first_weights: what each answer of the first counts.
        second_weights: what each answer of the second counts.
        seed: the seed of the resamples, which are the same for both models.
        derive: a function from means to figures that follow from them; None = nothing follows.

    Raises:
        ValueError: there is no answer, or no weight.
    """
    if not (first_weights.sum() > 0 and second_weights.sum() > 0):
        raise ValueError(f"bootstrap: found {len(first)} answers without weight; allowed: a weight above 0")
    metrics = first.shape[1]
    columns = [first * first_weights[:, None], first_weights[:, None]]
    columns += [second * second_weights[:, None], second_weights[:, None]]
    joined = np.concatenate(columns, axis=1)

    def difference(sums):
        one = sums[:, :metrics] / sums[:, metrics : metrics + 1]
        other = sums[:, metrics + 1 : -1] / sums[:, -1:]
        # Two infinite perplexities have no difference.
        with np.errstate(invalid="ignore"):
            return _with_derived(other, derive) - _with_derived(one, derive)

    sums = _resampled_sums(joined, seed)
    sums = sums[(sums[:, metrics] > 0) & (sums[:, -1] > 0)]
    return _intervals(difference(joined.sum(axis=0)[None])[0], difference(sums))


def _with_derived(
    means: Float[np.ndarray, "samples metrics"], derive: Derive | None
) -> Float[np.ndarray, "samples figures"]:
    return means if derive is None else np.concatenate([means, derive(means)], axis=1)


def _intervals(
    figures: Float[np.ndarray, " figures"], resampled: Float[np.ndarray, "samples figures"]
) -> list[Interval]:
    # Nor is there a percentile between two of them.
    with np.errstate(invalid="ignore"):
        low, high = np.percentile(resampled, _TAILS, axis=0)
    return [Interval(*map(float, ends)) for ends in zip(figures, low, high, strict=True)]


def _resampled_sums(
    values: Float[np.ndarray, "answers columns"], seed: int
) -> Float[np.ndarray, "resamples columns"]:
    """Return the sums over as many answers as there are, drawn with replacement, again and again."""
    rng = np.random.default_rng(seed)
    count = len(values)
    at_a_time = max(1, _MAX_COUNTS // count)
    sums = []
    for begin in range(0, _RESAMPLES, at_a_time):
        size = min(at_a_time, _RESAMPLES - begin)
        counts = rng.multinomial(count, np.full(count, 1 / count), size=size)
        sums.append(counts @ values)
    return np.concatenate(sums)
