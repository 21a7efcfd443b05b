"""Metrics of labels, derived from means, match scikit-learn and SciPy."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import example, given
from hypothesis import strategies as st

from birdie_jax.tasks.metrics import (
    INNER_METRICS,
    PEARSON,
    SPEARMAN,
    class_scores,
    confusion,
    correlation_of_means,
    correlation_scores,
    correlation_scores_within,
    f1_of_means,
    matthews_of_means,
)

RECORDED = json.loads(Path(__file__).with_name("label_scores.json").read_text())


def means_of(scores):
    return {name: float(np.mean([one[name] for one in scores])) for name in scores[0]}


@pytest.mark.parametrize("case", RECORDED, ids=range(len(RECORDED)))
def test_class_scores_match_scikit_learn(case):
    pairs = list(zip(case["labels"], case["predicted"], strict=True))
    means = means_of([class_scores(*pair) | confusion(*pair) for pair in pairs])
    assert means["accuracy"] == pytest.approx(case["accuracy"])
    assert f1_of_means(means) == pytest.approx(case["f1"])
    assert matthews_of_means(means) == pytest.approx(case["matthews_correlation"], abs=1e-12)


few_values = st.integers(-3, 3).map(float)
numbers = st.one_of(few_values, st.floats(-1e3, 1e3).map(lambda value: round(value, 3)))


@given(pairs=st.lists(st.tuples(few_values, numbers), min_size=2, max_size=30))
def test_correlations_match_scipy(pairs):
    labels, predicted = map(list, zip(*pairs, strict=True))
    scores = correlation_scores(labels, predicted)
    assert scores[0].keys() | confusion(1, 1).keys() == INNER_METRICS
    means = means_of(scores)
    for kind, function in ((PEARSON, scipy.stats.pearsonr), (SPEARMAN, scipy.stats.spearmanr)):
        found = correlation_of_means(means, kind)
        if len(set(labels)) == 1 or len(set(predicted)) == 1:
            assert found == 0
        else:
            assert found == pytest.approx(function(labels, predicted).statistic, abs=1e-6)


@given(
    pairs=st.lists(st.tuples(few_values, numbers), min_size=2, max_size=30),
    drawn=st.lists(st.integers(0, 29), min_size=1, max_size=30),
)
# A rounding error once gave this a correlation of 2.
@example(pairs=[(0.0, 1.8), (0.0, 1.0), (5.0, 2.8)], drawn=[0, 0, 0])
@example(pairs=[(0.1, 1.0), (0.1, 2.0), (0.1, 4.0)], drawn=[0, 1, 2])
def test_correlations_of_resamples_match_numpy(pairs, drawn):
    labels, predicted = map(np.array, zip(*pairs, strict=True))
    places = np.array(drawn) % len(pairs)
    scores = correlation_scores(labels.tolist(), predicted.tolist())
    means = means_of([scores[place] for place in places])
    for kind, values in ((PEARSON, np.asarray), (SPEARMAN, scipy.stats.rankdata)):
        found = correlation_of_means(means, kind)
        assert -1 <= found <= 1
        x, y = values(labels), values(predicted)
        if len(set(x[places])) == 1 or len(set(y[places])) == 1:
            assert found == 0
        elif varies(x, places) and varies(y, places):
            assert found == pytest.approx(np.corrcoef(x[places], y[places])[0, 1], abs=1e-5)


@given(
    pairs=st.lists(st.tuples(few_values, numbers), min_size=2, max_size=30),
    picked=st.sets(st.integers(0, 29), min_size=2),
)
def test_correlations_of_a_subset_match_scipy(pairs, picked):
    places = sorted({place % len(pairs) for place in picked})
    scores = correlation_scores(*map(list, zip(*pairs, strict=True)))
    means = means_of(correlation_scores_within([scores[place] for place in places]))
    labels, predicted = zip(*(pairs[place] for place in places), strict=True)
    for kind, function in ((PEARSON, scipy.stats.pearsonr), (SPEARMAN, scipy.stats.spearmanr)):
        found = correlation_of_means(means, kind)
        if len(set(labels)) == 1 or len(set(predicted)) == 1:
            assert found == 0
        else:
            assert found == pytest.approx(function(labels, predicted).statistic, abs=1e-6)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_correlations_of_infinite_or_nan_numbers_are_refused(wrong):
    for sides in (([1.0, wrong], [1.0, 2.0]), ([1.0, 2.0], [wrong, 2.0])):
        with pytest.raises(ValueError, match=f"^correlation: found {wrong}; allowed: finite numbers$"):
            correlation_scores(*sides)
    assert np.isnan(correlation_of_means(dict.fromkeys(INNER_METRICS, np.nan), PEARSON))


def varies(values, places):
    """Return whether the values at `places` differ by more than rounding errors."""
    standardised = (values - values.mean()) / values.std()
    return standardised[places].var() > 1e-8 * (standardised[places] ** 2).mean()


def test_nearly_equal_numbers_keep_their_correlation():
    labels = [1.0, 2.0, 3.0, 4.0]
    means = means_of(correlation_scores(labels, [2.5 + 1e-9 * label for label in labels]))
    assert correlation_of_means(means, PEARSON) == pytest.approx(1, abs=1e-5)
    assert correlation_of_means(means, SPEARMAN) == pytest.approx(1)
