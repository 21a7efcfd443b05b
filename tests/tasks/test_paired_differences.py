"""Differences of metrics that follow from means are those of NumPy and SciPy on the same resamples."""

import sys

import numpy as np
import pytest
import scipy.stats

from birdie_jax.tasks import Question, ScoredAnswer
from birdie_jax.tasks.glue import Glue
from birdie_jax.tasks.labelled_text import LabelledText
from birdie_jax.tasks.masked_text import MaskedText
from birdie_jax.tasks.metrics import class_scores, confusion, correlation_scores
from birdie_jax.tasks.summary import mean_scores, paired_differences

COUNT, SEED = 60, 7
LABELS = np.random.default_rng(0).integers(2, size=COUNT)
NUMBERS = np.random.default_rng(1).uniform(0, 5, COUNT).round()


def class_metrics(told):
    pairs = zip(LABELS.tolist(), told.tolist(), strict=True)
    return [class_scores(*pair) | confusion(*pair) for pair in pairs]


def classes_told(random):
    told = np.where(random.random(COUNT) < random.uniform(0.6, 0.9), LABELS, 1 - LABELS)
    return told, class_metrics(told)


def numbers_told(random):
    told = NUMBERS + random.normal(0, 2, COUNT)
    return told, correlation_scores(NUMBERS.tolist(), told.tolist())


def losses_told(random):
    losses = random.gamma(2, size=COUNT)
    return losses, [{"accuracy": float(loss < 1), "loss": float(loss)} for loss in losses]


def accuracy(places, told):
    return (LABELS[places] == told[places]).mean()


def f1(places, told):
    labels, here = LABELS[places], told[places]
    return 2 * (labels & here).sum() / (labels.sum() + here.sum())


def matthews(places, told):
    return np.corrcoef(LABELS[places], told[places])[0, 1]


def pearson(places, told):
    return np.corrcoef(NUMBERS[places], told[places])[0, 1]


def spearman(places, told):
    # A resample keeps the ranks that answers have among all.
    return np.corrcoef(scipy.stats.rankdata(NUMBERS)[places], scipy.stats.rankdata(told)[places])[0, 1]


# The task, what a model tells with its scores, and the metrics that are shown.
COMPARED = {
    "cola": (
        Glue(dataset="cola", path="x"),
        classes_told,
        {"accuracy": accuracy, "matthews_correlation": matthews},
    ),
    "mrpc": (Glue(dataset="mrpc", path="x"), classes_told, {"accuracy": accuracy, "f1": f1}),
    "labelled_text": (
        LabelledText(path="x", classes=("a", "b")),
        classes_told,
        {"accuracy": accuracy, "matthews_correlation": matthews},
    ),
    "stsb": (Glue(dataset="stsb", path="x"), numbers_told, {"spearman": spearman, "pearson": pearson}),
    "masked_text": (
        MaskedText(path="x"),
        losses_told,
        {
            "accuracy": lambda places, losses: (losses[places] < 1).mean(),
            "loss": lambda places, losses: losses[places].mean(),
            "perplexity": lambda places, losses: np.exp(losses[places].mean()),
        },
    ),
}


def answers(scores, weights=None):
    return [
        ScoredAnswer(Question(f"q{number}", "a", ("b",)), "b", of_answer, weight=weight)
        for number, (of_answer, weight) in enumerate(
            zip(scores, [1.0] * len(scores) if weights is None else weights.tolist(), strict=True)
        )
    ]


@pytest.mark.parametrize("name", COMPARED)
def test_every_shown_metric_has_the_difference_of_paired_resamples(name):
    task, tell, metrics = COMPARED[name]
    random = np.random.default_rng(2)
    told, scores = zip(*(tell(random) for _ in range(2)), strict=True)
    weights = random.integers(1, 5, (2, COUNT))
    first, second = map(answers, scores, weights.astype(float))
    found, pairs = paired_differences(task, first, second, SEED)
    assert pairs == COUNT
    assert found.keys() == metrics.keys() == mean_scores(task, first).keys()

    counts = np.random.default_rng(SEED).multinomial(COUNT, np.full(COUNT, 1 / COUNT), size=2000)
    for metric, score in metrics.items():

        def difference(counts, score=score):
            one, other = (np.repeat(np.arange(COUNT), counts * of_model) for of_model in weights)
            return score(other, told[1]) - score(one, told[0])

        ends = np.percentile([difference(of_resample) for of_resample in counts], (2.5, 97.5))
        expected = (difference(1), *ends)
        interval = found[metric]
        assert (interval.mean, interval.low, interval.high) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", COMPARED)
def test_models_change_places(name):
    task, tell, _ = COMPARED[name]
    random = np.random.default_rng(3)
    first, second = (answers(tell(random)[1]) for _ in range(2))
    there, _ = paired_differences(task, first, second)
    back, _ = paired_differences(task, second, first)
    for metric, interval in there.items():
        expected = (-interval.mean, -interval.high, -interval.low)
        assert (back[metric].mean, back[metric].low, back[metric].high) == pytest.approx(expected)
    same, _ = paired_differences(task, first, first)
    assert all((one.mean, one.low, one.high) == (0, 0, 0) for one in same.values())


def test_only_questions_that_both_answered_count():
    told, scores = classes_told(np.random.default_rng(4))
    first = answers(scores)
    right = answers(class_metrics(LABELS))
    found, pairs = paired_differences(Glue(dataset="mrpc", path="x"), first[:40], right[25:])
    assert pairs == 15
    assert found["f1"].mean == pytest.approx(1 - f1(np.arange(25, 40), told))


def test_answers_to_questions_of_both_are_ranked_among_themselves():
    random = np.random.default_rng(5)
    told, scores = zip(*(numbers_told(random) for _ in range(2)), strict=True)
    first, second = map(answers, scores)
    found, pairs = paired_differences(Glue(dataset="stsb", path="x"), first[:40], second[25:])
    assert pairs == 15
    one, other = (scipy.stats.spearmanr(NUMBERS[25:40], of[25:40]).statistic for of in told)
    assert found["spearman"].mean == pytest.approx(other - one)


def test_differences_of_the_largest_perplexities_are_numbers():
    large, small = (answers([{"accuracy": 0.0, "loss": loss}]) for loss in (1e4, 2.0))
    for second, wanted in ((large, 0), (small, pytest.approx(-sys.float_info.max))):
        found, _ = paired_differences(MaskedText(path="x"), large, second)
        assert found["perplexity"].mean == wanted
