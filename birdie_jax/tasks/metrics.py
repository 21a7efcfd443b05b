"""Scores of a written answer against acceptable ones: exact match, F1, and whether one is in the answer.

Exact match and F1 are those of SQuAD (Rajpurkar et al., 2016, section 6.1; 2018), computed as the official
evaluation script of version 2.0 does. That of version 1.1 gives the same but for an answer without a word,
as "the" or "!", which there never has a word in common with anything.

"Answer contains label" is the measure that the Birdie paper prefers (appendix B): full credit if any
acceptable answer is present in the response. Both are normalised first, as for exact match, so that an
answer that matches exactly contains its label too.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float64

# Those that are no means over answers follow from means: F1 and Matthews' correlation of two classes
# from the shares of the confusion matrix, correlations from means of squares and products. So their
# intervals are bootstraps of answers, as for every metric.

Numbers = Float64[np.ndarray, " answers"]

F1, MATTHEWS = "f1", "matthews_correlation"
PEARSON, SPEARMAN = "pearson", "spearman"

_CONFUSION = _POSITIVE, _PREDICTED, _TRUE_POSITIVE = "positive", "predicted_positive", "true_positive"
_MOMENTS = ("x", "y", "xx", "yy", "xy")
# A variance below this share of the mean square is a rounding error of equal numbers.
_ROUNDING = 1e-12

INNER_METRICS = frozenset(
    [*_CONFUSION, *(f"{kind}_{moment}" for kind in (PEARSON, SPEARMAN) for moment in _MOMENTS)]
)
"""The metrics of answers that F1 and correlations are derived from; they are not shown."""


def class_scores(label: int, predicted: int) -> dict[str, float]:
    """Return the accuracy of a predicted class."""
    return {"accuracy": float(predicted == label)}


def confusion(label: int, predicted: int) -> dict[str, float]:
    """Return the parts of the confusion matrix of the classes 0 and 1; 1 is the positive class."""
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
    """Return Matthews' correlation from the means of `confusion`; 0 where labels or answers are all one."""
    label, predicted = means[_POSITIVE], means[_PREDICTED]
    return _correlation(label, predicted, label, predicted, means[_TRUE_POSITIVE])


def correlation_scores(labels: Sequence[float], predicted: Sequence[float]) -> list[dict[str, float]]:
    """Return for each answer the metrics whose means give Pearson's and Spearman's correlation.

    A resample of the answers keeps the ranks that they have among all.

    Raises:
        ValueError: a number is not finite.
    """
    sides = np.asarray(labels, np.float64), np.asarray(predicted, np.float64)
    return _moments({PEARSON: sides, SPEARMAN: sides})


def correlation_scores_within(scores: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return `correlation_scores` of some of its answers alone, with new ranks.

    Args:
        scores: the metrics that it gave for these among others, from which their order and distances are
            known.
    """
    return _moments(
        {
            kind: tuple(np.array([one[f"{kind}_{side}"] for one in scores]) for side in "xy")
            for kind in (PEARSON, SPEARMAN)
        }
    )


def correlation_of_means(means: Mapping[str, float], kind: str) -> float:
    """Return a correlation from the means of `correlation_scores`; 0 where all numbers of a side are equal.

    Args:
        means: the means, including other metrics' means.
        kind: `PEARSON` or `SPEARMAN`.
    """
    return _correlation(*(means[f"{kind}_{moment}"] for moment in _MOMENTS))


def _correlation(x: float, y: float, xx: float, yy: float, xy: float) -> float:
    """Return the correlation of two variables from the means of both, of their squares and products.

    It is 0 if one does not vary, and NaN if a mean is NaN.
    """
    x_variance, y_variance = xx - x * x, yy - y * y
    if x_variance <= _ROUNDING * xx or y_variance <= _ROUNDING * yy:
        return 0.0
    correlation = (xy - x * y) / (math.sqrt(x_variance) * math.sqrt(y_variance))
    # Rounding may take it beyond its bounds.
    return float(np.clip(correlation, -1.0, 1.0))


def _moments(sides: Mapping[str, tuple[Numbers, ...]]) -> list[dict[str, float]]:
    """Return the metrics of each answer.

    Args:
        sides: for each kind the labels' and the answers' numbers; of Spearman's only their order counts.
    """
    scores: list[dict[str, float]] = [{} for _ in sides[PEARSON][0]]
    for kind, of_kind in sides.items():
        for side in of_kind:
            # NaN would have a rank.
            if not np.isfinite(side).all():
                wrong = side[~np.isfinite(side)][0]
                raise ValueError(f"correlation: found {wrong}; allowed: finite numbers")
        # Standardise first: otherwise numbers that hardly differ give only rounding errors.
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
    """Return the rank of each value from 1 on, the mean of their ranks where several are equal."""
    _, of_value, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[of_value]


# (normalised answer, normalised reference) -> score between 0 and 1
_PairScore = Callable[[str, str], float]

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Return a text in lower case without ASCII punctuation, English articles and superfluous spaces."""
    bare = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", bare).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1 if the normalised answer is one of the normalised references, else 0.

    Args:
        answer: what the model wrote.
        references: the acceptable answers.
    """
    return _best(answer, references, lambda found, wanted: float(found == wanted))


def f1(answer: str, references: Sequence[str]) -> float:
    """Return the largest harmonic mean of precision and recall of words over the references.

    Words count as often as they are in both. The arguments are the same as for `exact_match`.
    """
    return _best(answer, references, _f1_of_words)


def contains(answer: str, references: Sequence[str]) -> float:
    """Return 1 if any normalised reference is within the normalised answer, else 0.

    Within a longer word counts too, as with any search for text.

    The arguments are the same as for `exact_match`.
    """
    return _best(answer, references, lambda found, wanted: float(wanted in found if wanted else not found))


def contains_verbatim(answer: str, references: Sequence[str]) -> float:
    """Return 1 if the answer contains any reference, ignoring only case, else 0.

    It is the measure `contains` of the tasks of the EleutherAI harness on recall (squad_completion, fda,
    swde; Arora et al., 2024). The arguments are the same as for `exact_match`.
    """
    return float(any(re.search(re.escape(one), answer, re.IGNORECASE) for one in references))


# The metrics of a written answer, by the names under which results have them.
ANSWER_METRICS: Mapping[str, Callable[[str, Sequence[str]], float]] = {
    metric.__name__: metric for metric in (exact_match, f1, contains, contains_verbatim)
}


def _best(answer: str, references: Sequence[str], score: _PairScore) -> float:
    found = normalize_answer(answer)
    # The script of version 2.0 ignores references that become empty, unless there is no other.
    wanted = list(filter(None, map(normalize_answer, references))) or [""]
    return max(score(found, reference) for reference in wanted)


def _f1_of_words(answer: str, reference: str) -> float:
    found, wanted = answer.split(), reference.split()
    if not found or not wanted:
        return float(found == wanted)
    common = (Counter(found) & Counter(wanted)).total()
    precision, recall = common / len(found), common / len(wanted)
    return 2 * precision * recall / (precision + recall) if common else 0.0
