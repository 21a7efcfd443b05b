"""Metrics of generated answers, predicted classes and predicted numbers.

Exact match and F1 follow the official evaluation script of SQuAD 2.0 (Rajpurkar et al., 2016, section 6.1;
2018). The script of version 1.1 returns the same scores, except for answers without words, such as "the" or
"!": there they have no word in common with any reference.

"Answer contains label" is the metric that the Birdie paper prefers (appendix B). An answer gets full credit
if it contains any acceptable answer. Both are normalised as for exact match, so an exact match also
contains the label.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float64

# F1 and correlations are not means over answers. They are functions of means: F1 and Matthews' correlation
# of the confusion matrix, the other correlations of mean squares and products. So their intervals are
# bootstraps over answers, as for all metrics.

Numbers = Float64[np.ndarray, " answers"]

F1, MATTHEWS = "f1", "matthews_correlation"
PEARSON, SPEARMAN = "pearson", "spearman"

_CONFUSION = _POSITIVE, _PREDICTED, _TRUE_POSITIVE = "positive", "predicted_positive", "true_positive"
_MOMENTS = ("x", "y", "xx", "yy", "xy")
# A variance below this share of the mean square is rounding error; all numbers are equal.
_ROUNDING = 1e-12

INNER_METRICS = frozenset(
    [*_CONFUSION, *(f"{kind}_{moment}" for kind in (PEARSON, SPEARMAN) for moment in _MOMENTS)]
)
"""The metrics of answers that F1 and correlations are derived from; reports omit them."""


def class_scores(label: int, predicted: int) -> dict[str, float]:
    """Return the accuracy of a predicted class."""
    return {"accuracy": float(predicted == label)}


def confusion(label: int, predicted: int) -> dict[str, float]:
    """Return an answer's terms of the confusion matrix of the classes 0 and 1; 1 is the positive class."""
    return {
        _POSITIVE: float(label == 1),
        _PREDICTED: float(predicted == 1),
        _TRUE_POSITIVE: float(label == predicted == 1),
    }


def f1_of_means(means: Mapping[str, float]) -> float:
    """Return F1 of the positive class from the means of `confusion`; 0 if it is undefined."""
    both = means[_POSITIVE] + means[_PREDICTED]
    return 2 * means[_TRUE_POSITIVE] / both if both else 0.0


def matthews_of_means(means: Mapping[str, float]) -> float:
    """Return Matthews' correlation from the means of `confusion`; 0 if all labels or answers are equal."""
    label, predicted = means[_POSITIVE], means[_PREDICTED]
    return _correlation(label, predicted, label, predicted, means[_TRUE_POSITIVE])


def correlation_scores(labels: Sequence[float], predicted: Sequence[float]) -> list[dict[str, float]]:
    """Return for each answer the metrics whose means give Pearson's and Spearman's correlation.

    A bootstrap resample keeps the ranks among all answers.

    Raises:
        ValueError: a number is not finite.
    """
    sides = np.asarray(labels, np.float64), np.asarray(predicted, np.float64)
    return _moments({PEARSON: sides, SPEARMAN: sides})


def correlation_scores_within(scores: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return `correlation_scores` of a subset of answers, with new ranks.

    Args:
        scores: the metrics that `correlation_scores` returned for these answers, among others.
    """
    return _moments(
        {
            kind: tuple(np.array([one[f"{kind}_{side}"] for one in scores]) for side in "xy")
            for kind in (PEARSON, SPEARMAN)
        }
    )


def correlation_of_means(means: Mapping[str, float], kind: str) -> float:
    """Return a correlation from the means of `correlation_scores`; 0 if labels or answers are all equal.

    Args:
        means: the means of these metrics; other keys are ignored.
        kind: `PEARSON` or `SPEARMAN`.
    """
    return _correlation(*(means[f"{kind}_{moment}"] for moment in _MOMENTS))


def _correlation(x: float, y: float, xx: float, yy: float, xy: float) -> float:
    """Return the correlation of x and y from the means of x, y, x^2, y^2 and xy.

    Returns 0 if x or y is constant, and NaN if a mean is NaN.
    """
    x_variance, y_variance = xx - x * x, yy - y * y
    if x_variance <= _ROUNDING * xx or y_variance <= _ROUNDING * yy:
        return 0.0
    correlation = (xy - x * y) / (math.sqrt(x_variance) * math.sqrt(y_variance))
    # Rounding errors may exceed the bounds.
    return float(np.clip(correlation, -1.0, 1.0))


def _moments(sides: Mapping[str, tuple[Numbers, ...]]) -> list[dict[str, float]]:
    """Return the metrics of each answer.

    Args:
        sides: the labels and the predicted numbers for each kind of correlation. Spearman's correlation
            uses only their order.
    """
    scores: list[dict[str, float]] = [{} for _ in sides[PEARSON][0]]
    for kind, of_kind in sides.items():
        for side in of_kind:
            # Check first: ranking would hide NaN.
            if not np.isfinite(side).all():
                wrong = side[~np.isfinite(side)][0]
                raise ValueError(f"correlation: found {wrong}; allowed: finite numbers")
        # Standardise, or rounding errors dominate for numbers with a small variance.
        x, y = (_standardised(_ranks(side) if kind == SPEARMAN else side) for side in of_kind)
        for moment, column in zip(_MOMENTS, (x, y, x * x, y * y, x * y), strict=True):
            for of_answer, value in zip(scores, column.tolist(), strict=True):
                of_answer[f"{kind}_{moment}"] = value
    return scores


def _standardised(values: Numbers) -> Numbers:
    if values.min() == values.max():
        return np.zeros_like(values)
    centred = values - values.mean()
    return centred / centred.std()


def _ranks(values: Numbers) -> Numbers:
    """Return the rank of each value, from 1. Equal values share their mean rank."""
    _, of_value, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[of_value]


# (normalised answer, normalised reference) -> score between 0 and 1
_PairScore = Callable[[str, str], float]

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Return a text in lower case, without ASCII punctuation, English articles and repeated spaces."""
    bare = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", bare).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1 if the normalised answer is one of the normalised references, else 0.

    Args:
        answer: the model's answer.
        references: the acceptable answers.
    """
    return _best(answer, references, lambda found, wanted: float(found == wanted))


def f1(answer: str, references: Sequence[str]) -> float:
    """Return the largest F1 over the references: the harmonic mean of precision and recall of words.

    A repeated word counts as often as it occurs in both texts. The arguments are those of `exact_match`.
    """
    return _best(answer, references, _f1_of_words)


def contains(answer: str, references: Sequence[str]) -> float:
    """Return 1 if the normalised answer contains any normalised reference, else 0.

    A reference may also be a part of a longer word. The arguments are those of `exact_match`.
    """
    return _best(answer, references, lambda found, wanted: float(wanted in found if wanted else not found))


def contains_verbatim(answer: str, references: Sequence[str]) -> float:
    """Return 1 if the answer contains any reference, ignoring only case, else 0.

    The EleutherAI harness uses this metric as `contains` in its recall tasks (squad_completion, fda, swde;
    Arora et al., 2024). The arguments are those of `exact_match`.
    """
    return float(any(re.search(re.escape(one), answer, re.IGNORECASE) for one in references))


# The metrics of a generated answer, by name.
ANSWER_METRICS: Mapping[str, Callable[[str, Sequence[str]], float]] = {
    metric.__name__: metric for metric in (exact_match, f1, contains, contains_verbatim)
}


def _best(answer: str, references: Sequence[str], score: _PairScore) -> float:
    found = normalize_answer(answer)
    # The script of SQuAD 2.0 ignores references that normalise to an empty text, unless all do.
    wanted = list(filter(None, map(normalize_answer, references))) or [""]
    return max(score(found, reference) for reference in wanted)


def _f1_of_words(answer: str, reference: str) -> float:
    found, wanted = answer.split(), reference.split()
    if not found or not wanted:
        return float(found == wanted)
    common = (Counter(found) & Counter(wanted)).total()
    precision, recall = common / len(found), common / len(wanted)
    return 2 * precision * recall / (precision + recall) if common else 0.0
