"""Differences of derived metrics match NumPy and SciPy on the same resamples."""

import sys

import numpy as np
import pytest
import scipy.stats

from birdie_jax.tasks import Question, ScoredAnswer
from birdie_jax.tasks.associative_recall import AssociativeRecall
from birdie_jax.tasks.bootstrap import bootstrap_differences, bootstrap_means
from birdie_jax.tasks.glue import Glue
from birdie_jax.tasks.instructions import Instructions
from birdie_jax.tasks.labelled_text import LabelledText
from birdie_jax.tasks.masked_text import MaskedText
from birdie_jax.tasks.metrics import class_scores, confusion, correlation_scores
from birdie_jax.tasks.perplexity import Perplexity
from birdie_jax.tasks.summary import mean_scores, paired_differences

COUNT, SEED = 60, 7
LABELS = np.random.default_rng(0).integers(2, size=COUNT)
NUMBERS = np.random.default_rng(1).uniform(0, 5, COUNT).round()


def class_metrics(predicted):
    pairs = zip(LABELS.tolist(), predicted.tolist(), strict=True)
    return [class_scores(*pair) | confusion(*pair) for pair in pairs]


def predicted_classes(random):
    predicted = np.where(random.random(COUNT) < random.uniform(0.6, 0.9), LABELS, 1 - LABELS)
    return predicted, class_metrics(predicted)


def predicted_numbers(random):
    predicted = NUMBERS + random.normal(0, 2, COUNT)
    return predicted, correlation_scores(NUMBERS.tolist(), predicted.tolist())


def predicted_losses(random):
    losses = random.gamma(2, size=COUNT)
    return losses, [{"accuracy": float(loss < 1), "loss": float(loss)} for loss in losses]


def accuracy(places, predicted):
    return (LABELS[places] == predicted[places]).mean()


def f1(places, predicted):
    labels, here = LABELS[places], predicted[places]
    return 2 * (labels & here).sum() / (labels.sum() + here.sum())


def matthews(places, predicted):
    return np.corrcoef(LABELS[places], predicted[places])[0, 1]


def pearson(places, predicted):
    return np.corrcoef(NUMBERS[places], predicted[places])[0, 1]


def spearman(places, predicted):
    # A resample keeps the ranks among all answers.
    return np.corrcoef(scipy.stats.rankdata(NUMBERS)[places], scipy.stats.rankdata(predicted)[places])[0, 1]


# name -> (task, function that returns a model's predictions and scores, reported metrics)
COMPARED = {
    "cola": (
        Glue(dataset="cola", path="x"),
        predicted_classes,
        {"accuracy": accuracy, "matthews_correlation": matthews},
    ),
    "mrpc": (Glue(dataset="mrpc", path="x"), predicted_classes, {"accuracy": accuracy, "f1": f1}),
    "labelled_text": (
        LabelledText(path="x", classes=("a", "b")),
        predicted_classes,
        {"accuracy": accuracy, "matthews_correlation": matthews},
    ),
    "stsb": (Glue(dataset="stsb", path="x"), predicted_numbers, {"spearman": spearman, "pearson": pearson}),
    "masked_text": (
        MaskedText(path="x"),
        predicted_losses,
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
def test_differences_match_paired_resamples(name):
    task, predict, metrics = COMPARED[name]
    random = np.random.default_rng(2)
    predicted, scores = zip(*(predict(random) for _ in range(2)), strict=True)
    weights = random.integers(1, 5, (2, COUNT))
    first, second = map(answers, scores, weights.astype(float))
    found, pairs = paired_differences(task, first, second, SEED)
    assert pairs == COUNT
    assert found.keys() == metrics.keys() == mean_scores(task, first).keys()

    counts = np.random.default_rng(SEED).multinomial(COUNT, np.full(COUNT, 1 / COUNT), size=2000)
    for metric, score in metrics.items():

        def difference(counts, score=score):
            one, other = (np.repeat(np.arange(COUNT), counts * of_model) for of_model in weights)
            return score(other, predicted[1]) - score(one, predicted[0])

        ends = np.percentile([difference(of_resample) for of_resample in counts], (2.5, 97.5))
        expected = (difference(1), *ends)
        interval = found[metric]
        assert (interval.mean, interval.low, interval.high) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", COMPARED)
def test_swapped_models_have_opposite_differences(name):
    task, predict, _ = COMPARED[name]
    random = np.random.default_rng(3)
    first, second = (answers(predict(random)[1]) for _ in range(2))
    there, _ = paired_differences(task, first, second)
    back, _ = paired_differences(task, second, first)
    for metric, interval in there.items():
        expected = (-interval.mean, -interval.high, -interval.low)
        assert (back[metric].mean, back[metric].low, back[metric].high) == pytest.approx(expected)
    same, _ = paired_differences(task, first, first)
    assert all((one.mean, one.low, one.high) == (0, 0, 0) for one in same.values())


def test_only_questions_that_both_answered_count():
    predicted, scores = predicted_classes(np.random.default_rng(4))
    first = answers(scores)
    right = answers(class_metrics(LABELS))
    found, pairs = paired_differences(Glue(dataset="mrpc", path="x"), first[:40], right[25:])
    assert pairs == 15
    assert found["f1"].mean == pytest.approx(1 - f1(np.arange(25, 40), predicted))


def test_questions_with_other_prompts_are_no_pairs():
    """With another tokenizer, some tasks ask other questions under the same names."""
    task = Glue(dataset="mrpc", path="x")
    first, second = answers(class_metrics(1 - LABELS)), answers(class_metrics(LABELS))
    for number in range(COUNT - 10):
        second[number] = second[number]._replace(question=second[number].question._replace(prompt="b"))
    found, pairs = paired_differences(task, first, second)
    assert (pairs, found["accuracy"].mean) == (10, 1)
    assert paired_differences(task, first, second[: COUNT - 10]) == ({}, 0)


def test_answers_to_shared_questions_are_ranked_among_themselves():
    random = np.random.default_rng(5)
    predicted, scores = zip(*(predicted_numbers(random) for _ in range(2)), strict=True)
    first, second = map(answers, scores)
    found, pairs = paired_differences(Glue(dataset="stsb", path="x"), first[:40], second[25:])
    assert pairs == 15
    one, other = (scipy.stats.spearmanr(NUMBERS[25:40], of[25:40]).statistic for of in predicted)
    assert found["spearman"].mean == pytest.approx(other - one)


def test_differences_of_the_largest_perplexities_are_finite():
    large, small = (answers([{"accuracy": 0.0, "loss": loss}]) for loss in (1e4, 2.0))
    for second, wanted in ((large, 0), (small, pytest.approx(-sys.float_info.max))):
        found, _ = paired_differences(MaskedText(path="x"), large, second)
        assert found["perplexity"].mean == wanted


@pytest.mark.parametrize(
    ("task", "metrics"),
    [
        (Perplexity(path="x"), ("bits_per_byte", "tokens_per_byte")),
        (MaskedText(path="x"), ("accuracy", "loss")),
    ],
)
def test_the_parts_of_a_document_are_drawn_and_paired_as_one(task, metrics):
    random = np.random.default_rng(6)
    sizes = random.integers(20, 90, COUNT)
    models, rates = [], []
    # With other tokenizers, a part of the same name has other bytes, and documents have other parts.
    for parts in (5, 3):
        found, of_documents = [], []
        for number, size in enumerate(sizes):
            own = random.multinomial(size - parts, np.full(parts, 1 / parts)) + 1.0
            own[-1] += size - own.sum()
            scores = random.gamma(2, size=(parts, 2))
            for part, (weight, of_part) in enumerate(zip(own, scores, strict=True)):
                question = Question(f"d{number} from {part}", "", ("",), groups={"position": part})
                named, details = dict(zip(metrics, of_part, strict=True)), {"document": f"d{number}"}
                found.append(ScoredAnswer(question, "", named, weight=weight, details=details))
            of_documents.append(own @ scores / size)
        models.append(found)
        rates.append(np.array(of_documents))
    weights = sizes.astype(float)
    expected = bootstrap_differences(*rates, weights, weights, SEED)[0]
    differences, pairs = paired_differences(task, *models, SEED)
    assert pairs == COUNT
    found = differences[metrics[0]]
    assert [found.mean, found.low, found.high] == pytest.approx(
        [expected.mean, expected.low, expected.high]
    )
    alone, expected = mean_scores(task, models[0])[metrics[0]], bootstrap_means(rates[0], weights)[0]
    assert [alone.mean, alone.low, alone.high] == pytest.approx(
        [expected.mean, expected.low, expected.high]
    )


@pytest.mark.parametrize(
    ("task", "metric", "name"),
    [
        (AssociativeRecall(), "exact_match", "{:06d}-{}"),
        (Instructions(path="x"), "loss", "all answer 2.jsonl: line {} answer {}"),
    ],
)
def test_the_shared_questions_of_a_unit_are_drawn_and_paired_as_one(task, metric, name):
    random, parts = np.random.default_rng(8), 3
    scores = random.integers(0, 2, (2, COUNT, parts)).astype(float)
    # The second model skips the last question of some units.
    asked = np.ones((COUNT, parts), bool)
    asked[::3, -1] = False
    first, second = (
        [
            ScoredAnswer(Question(name.format(unit, part), f"p{unit} {part}", ("",)), "", {metric: score})
            for unit, of_unit in enumerate(of_model)
            for part, score in enumerate(of_unit)
            if number == 0 or asked[unit, part]
        ]
        for number, of_model in enumerate(scores)
    )
    weights = asked.sum(axis=1).astype(float)
    ours, theirs = ((of_model * asked).sum(axis=1, keepdims=True) / weights[:, None] for of_model in scores)
    (expected,) = bootstrap_differences(ours, theirs, weights, weights, SEED)
    found, pairs = paired_differences(task, first, second, SEED)
    assert (pairs, found[metric]) == (COUNT, expected)
    (expected,) = bootstrap_means(theirs, weights)
    assert mean_scores(task, second)[metric] == expected
