"""Bootstrap intervals for the mean scores of a model, and for differences between two models.

Intervals are percentiles of resampled means (Efron 1979). Answers are drawn with replacement. For two
models, the answers to the same question are drawn together.
"""

import functools
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Float, Int, UInt16

from birdie_jax.evaluation_record import Interval

_RESAMPLES = 2000
# The largest array of counts in memory, in elements.
_MAX_COUNTS = 1 << 22
# Their resamples take up to 8 MB.
_MAX_KEPT_ANSWERS = 2000
_TAILS = (2.5, 97.5)

Scores = Float[np.ndarray, "answers metrics"]
Weights = Float[np.ndarray, " answers"]
# A function from rows of mean metrics to rows of derived metrics.
Derive = Callable[[Float[np.ndarray, "samples metrics"]], Float[np.ndarray, "samples derived"]]


def bootstrap_means(
    scores: Scores, weights: Weights, seed: int = 0, derive: Derive | None = None
) -> list[Interval]:
    """Return the weighted mean and 95 % interval of each metric, then of each derived metric.

    Args:
        scores: the scores of each answer; at least one answer.
        weights: the weight of each answer; at least one above 0.
        seed: the seed of the resamples.
        derive: a function from mean metrics to derived metrics; None = no derived metrics.

    Raises:
        ValueError: there is no answer, or all weights are 0.
    """
    total = weights.sum()
    if not total > 0:
        raise ValueError(
            f"bootstrap: found {len(scores)} answers of weight {total}; allowed: a weight above 0"
        )
    weighted = np.concatenate([scores * weights[:, None], weights[:, None]], axis=1)
    sums = _resampled_sums(weighted, seed)
    # Drop resamples whose answers all have weight 0.
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
    """Return the second mean minus the first of each metric, with a paired 95 % interval.

    The differences of the derived metrics follow.

    Args:
        first: the scores of the first model's answers.
        second: the scores of the second model's answers to the same questions.
        first_weights: the weight of each answer of the first model.
        second_weights: the weight of each answer of the second model.
        seed: the seed of the resamples, which both models share.
        derive: a function from mean metrics to derived metrics; None = no derived metrics.

    Raises:
        ValueError: there is no answer, or all weights of a model are 0.
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
        # The difference of two infinite perplexities is NaN.
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
    # Interpolating between two infinite values gives NaN.
    with np.errstate(invalid="ignore"):
        low, high = np.percentile(resampled, _TAILS, axis=0)
    return [Interval(*map(float, ends)) for ends in zip(figures, low, high, strict=True)]


def _resampled_sums(
    values: Float[np.ndarray, "answers columns"], seed: int
) -> Float[np.ndarray, "resamples columns"]:
    """Return the sum of each resample: as many answers as there are, drawn with replacement."""
    draw = _kept_resamples if len(values) <= _MAX_KEPT_ANSWERS else _resamples
    return np.concatenate([counts @ values for counts in draw(len(values), seed)])


def _resamples(count: int, seed: int) -> Iterator[Int[np.ndarray, "resamples answers"]]:
    """Yield how often each resample has each of `count` answers, in parts that fit into memory."""
    rng = np.random.default_rng(seed)
    at_a_time = max(1, _MAX_COUNTS // count)
    for begin in range(0, _RESAMPLES, at_a_time):
        size = min(at_a_time, _RESAMPLES - begin)
        yield rng.multinomial(count, np.full(count, 1 / count), size=size)


@functools.lru_cache(maxsize=8)
def _kept_resamples(count: int, seed: int) -> tuple[UInt16[np.ndarray, "resamples answers"], ...]:
    """Return the same, and keep it: a table has many intervals of equally many answers."""
    return tuple(counts.astype(np.uint16) for counts in _resamples(count, seed))
