"""GLUE: the nine published formats, bad rows, and scores of a head's predictions."""

import re

import numpy as np
import pytest
import scipy.stats

from birdie_jax.config import Config
from birdie_jax.config_sections import ModelConfig
from birdie_jax.errors import ConfigError, DataError
from birdie_jax.evaluation_record import EvaluatedModel
from birdie_jax.models.regression_head import number_of_label
from birdie_jax.models.task_head import Head
from birdie_jax.objectives import make_mixture
from birdie_jax.tasks.evaluation import NamedTask, arms_of_tasks, check_tasks
from birdie_jax.tasks.evaluation_table import category_tables
from birdie_jax.tasks.glue import Glue
from birdie_jax.tasks.glue_files import GLUE_DATASETS
from birdie_jax.tasks.summary import mean_scores, summarise
from birdie_jax.tasks.task_model import TaskModel
from tests.tasks.glue_folders import labels_of, write_glue
from tests.tasks.tiny_task_model import tiny_task_model
from tests.trained_workdirs import small_tokenizer

CLASSES = [name for name, form in GLUE_DATASETS.items() if form.classes]


def rows_of(dataset, count=6):
    labels = labels_of(dataset)
    return [(f'"abc {number}', f"def {number}", labels[number % len(labels)]) for number in range(count)]


@pytest.mark.parametrize("dataset", GLUE_DATASETS)
def test_every_format_is_read(dataset, tmp_path):
    rows, form = rows_of(dataset), GLUE_DATASETS[dataset]
    path = write_glue(tmp_path, dataset, form.splits[-1], rows)
    task = Glue(dataset=dataset, path=str(tmp_path))
    samples, refused = task.samples(form.splits[-1])
    assert not refused
    number_of_header = 0 if dataset == "cola" else 1
    for number, (sample, (first, second, label)) in enumerate(zip(samples, rows, strict=True)):
        assert sample.name == f"{path}: line {number + 1 + number_of_header}"
        assert sample.texts == ((first,) if len(form.texts) == 1 else (first, second))
        predicted = form.classes[sample.label - 1] if form.classes else f"{(sample.label - 1) / 1000:.3f}"
        assert predicted == label
    assert task.head == (
        Head("classification", dataset, len(form.classes), form.classes)
        if form.classes
        else Head("regression", dataset)
    )


def test_training_reads_the_training_file(tmp_path):
    write_glue(tmp_path, "rte", "train", [("abc", "def", "entailment")])
    tokenizer = small_tokenizer()
    examples = Glue(dataset="rte", path=str(tmp_path)).training_examples(tokenizer)
    assert tokenizer.decode(examples[0].context) == "[MASKED_LM]abc[SEP]def[SEP]"
    assert examples[0].labels[0] == 2
    assert examples.name_of(0) == f"{tmp_path}/train.tsv: line 2"


SCORE = "a number from 0 to 5 with at most three decimals"
BAD = [
    ("mrpc", ("a", "b", "2"), "line 3: Quality: found '2'; allowed: 0, 1"),
    ("qnli", ("a", "b", "neutral"), "line 3: label: found 'neutral'; allowed: not_entailment, entailment"),
    ("mnli", ("a", "b", "-"), "line 3: gold_label: found '-'; allowed: contradiction, entailment, neutral"),
    ("stsb", ("a", "b", "5.1"), f"line 3: score: found '5.1'; allowed: {SCORE}"),
    ("stsb", ("a", "b", "nan"), f"line 3: score: found 'nan'; allowed: {SCORE}"),
    ("stsb", ("a", "b", ""), f"line 3: score: found ''; allowed: {SCORE}"),
    ("stsb", ("a", "b", "2.3334"), f"line 3: score: found '2.3334'; allowed: {SCORE}"),
    ("cola", (" ", "", "1"), "line 2: sentence: found ' '; allowed: text with more than white space"),
    ("rte", ("a\tb", "c", "entailment"), "line 3: found 5 columns; allowed: 4: index, "),
]


@pytest.mark.parametrize(("dataset", "row", "message"), BAD)
def test_bad_rows_are_named(tmp_path, dataset, row, message):
    split = GLUE_DATASETS[dataset].splits[0]
    path = write_glue(tmp_path, dataset, split, [rows_of(dataset)[0], row, rows_of(dataset)[1]])
    task = Glue(dataset=dataset, path=str(tmp_path))
    with pytest.raises(DataError, match=f"^{re.escape(f'{path}: 1 of 3 records are bad: {message}')}"):
        task.samples(split)
    passing = Glue(dataset=dataset, path=str(tmp_path), skip_bad_records=True)
    samples, refused = passing.samples(split)
    assert len(samples) == 2 and len(refused) == 1


def test_the_file_of_another_data_set_is_refused(tmp_path):
    path = write_glue(tmp_path, "qnli", "dev", rows_of("qnli"))
    with pytest.raises(DataError, match=f"^{re.escape(str(path))}: line 1: has no column 'sentence1'; its"):
        Glue(dataset="rte", path=str(tmp_path)).samples("dev")


def measured(task):
    result = task.measure(tiny_task_model())
    return result, {name: interval.mean for name, interval in mean_scores(task, result.answers).items()}


@pytest.mark.parametrize("dataset", CLASSES)
def test_classes_are_scored(dataset, tmp_path, set_head_scores):
    form = GLUE_DATASETS[dataset]
    rows, predicted = rows_of(dataset, 12), np.random.default_rng(1).integers(len(form.classes), size=12)
    write_glue(tmp_path, dataset, form.splits[0], rows)
    task = Glue(dataset=dataset, path=str(tmp_path))
    scores = [[float(number == which) for number in range(len(form.classes))] for which in predicted]
    set_head_scores(scores)
    result, means = measured(task)
    labels = np.array([form.classes.index(label) for *_, label in rows])
    assert means["accuracy"] == pytest.approx((labels == predicted).mean())
    assert means.keys() == set(form.metrics)
    if "f1" in form.metrics:
        both = ((labels == 1) & (predicted == 1)).sum()
        assert means["f1"] == pytest.approx(2 * both / (labels.sum() + predicted.sum()))
    if "matthews_correlation" in form.metrics:
        assert means["matthews_correlation"] == pytest.approx(np.corrcoef(labels, predicted)[0, 1])
    for answer, (*_, label), which in zip(result.answers, rows, predicted, strict=True):
        assert answer.question.references == (label,) and answer.answer == form.classes[which]


def test_numbers_are_scored_by_correlations(tmp_path, set_head_scores):
    random = np.random.default_rng(2)
    labels, predicted = np.round(random.uniform(0, 5, 20), 3), random.normal(size=20)
    write_glue(tmp_path, "stsb", "dev", [("abc", "de", f"{label:.3f}") for label in labels])
    task = Glue(dataset="stsb", path=str(tmp_path))
    set_head_scores([[score] for score in predicted])
    result, means = measured(task)
    assert means == {
        "spearman": pytest.approx(scipy.stats.spearmanr(labels, predicted).statistic, abs=1e-6),
        "pearson": pytest.approx(scipy.stats.pearsonr(labels, predicted).statistic, abs=1e-6),
    }
    assert result.answers[0].answer == f"{predicted[0]:.3f}"


def test_numbers_of_a_group_are_ranked_among_themselves(tmp_path, set_head_scores):
    """So the score of a group equals the score of a file with only its rows."""
    random = np.random.default_rng(3)
    labels, predicted = np.round(random.uniform(0, 5, 30), 3), random.normal(size=30).astype(np.float32)
    rows = [("abc" * (1 + number % 3), "de", f"{label:.3f}") for number, label in enumerate(labels)]
    write_glue(tmp_path, "stsb", "dev", rows)
    task = Glue(dataset="stsb", path=str(tmp_path))
    set_head_scores([[score] for score in predicted])
    result, _ = measured(task)
    model = EvaluatedModel("runs/a", 5, "c", "p", "masked_lm")
    parts = summarise("stsb", task, model, result, seconds=1.0).groups["prompt_tokens"]
    assert len(parts) == 3
    for number, part in enumerate(parts):
        for metric, function in (("spearman", scipy.stats.spearmanr), ("pearson", scipy.stats.pearsonr)):
            expected = function(labels[number::3], predicted[number::3]).statistic
            assert part.metrics[metric].mean == pytest.approx(expected, abs=1e-6)


def test_labels_keep_every_number_of_a_file(tmp_path):
    """Each multiple of 0.001 is read in four notations, including float32."""
    meant = [number / 1000 for number in range(5001)]
    forms = (str, "{:.3f}".format, "{:.5f}".format, lambda number: repr(float(np.float32(number))))
    write_glue(tmp_path, "stsb", "dev", [("abc", "de", form(number)) for form in forms for number in meant])
    samples, _ = Glue(dataset="stsb", path=str(tmp_path)).samples("dev")
    assert [number_of_label(sample.label) for sample in samples] == meant * len(forms)


def write_phenomena(path, sentences, *flags):
    """Write an annotated development set in the published format, with two phenomena."""
    head = "Source\tDomain\tAcceptability\tSentence\tSimple\tSem  Violation"
    rows = [
        "\t".join(["gj04", "In", "1", sentence, *of]) for sentence, of in zip(sentences, flags, strict=True)
    ]
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def test_scores_of_cola_are_broken_down_by_phenomena(tmp_path, set_head_scores):
    """A category has the sentences with its phenomenon. The title counts the annotated sentences."""
    rows = [("abc", "", "1"), ("def", "", "0"), ("ghi", "", "0"), ("jkl", "", "1"), ("mno", "", "1")]
    write_glue(tmp_path, "cola", "dev", rows)
    path = write_phenomena(tmp_path / "major.tsv", ["abc", "def", "ghi", "jkl"], "11", "10", "11", "00")
    task = Glue(dataset="cola", path=str(tmp_path), phenomena=str(path))
    set_head_scores([[0, 1], [1, 0], [0, 1], [0, 1], [0, 1]])
    result, _ = measured(task)
    assert [dict(answer.question.categories) for answer in result.answers] == [
        {"phenomenon": ("Simple", "Sem Violation")},
        {"phenomenon": ("Simple",)},
        {"phenomenon": ("Simple", "Sem Violation")},
        {"phenomenon": ()},
        {},
    ]
    model = EvaluatedModel("runs/a", 5, "c", "p", "masked_lm")
    record = summarise("cola", task, model, result, seconds=1.0)
    title, _, *lines = category_tables(record).splitlines()
    assert title == "cola by phenomenon, known of 4 of 5 answers"
    # "Simple" has the labels 1, 0, 0 and the answers 1, 0, 1. Both answers of "Sem Violation" are 1.
    correlation = np.corrcoef([1, 0, 0], [1, 0, 1])[0, 1]
    assert [(line.split()[0], line.split()[-1]) for line in lines] == [("Sem", "2"), ("Simple", "3")]
    assert lines[0].split()[2] == "0.0000" and lines[1].split()[1] == f"{correlation:.4f}"


def test_a_sentence_that_occurs_twice_has_two_annotations(tmp_path, set_head_scores):
    write_glue(tmp_path, "cola", "dev", [("abc", "", "1"), ("def", "", "0"), ("abc", "", "1")])
    path = write_phenomena(tmp_path / "major.tsv", ["abc", "abc", "def"], "10", "01", "00")
    task = Glue(dataset="cola", path=str(tmp_path), phenomena=str(path))
    set_head_scores([[0, 1]] * 3)
    result, _ = measured(task)
    shown = [answer.question.categories["phenomenon"] for answer in result.answers]
    assert shown == [("Simple",), (), ("Sem Violation",)]


def test_bad_annotations_are_refused(tmp_path):
    rows = rows_of("cola", 2)
    write_glue(tmp_path, "cola", "dev", rows)
    sentences = [sentence for sentence, *_ in rows]
    path = write_phenomena(tmp_path / "major.tsv", sentences, "10", ("0", "x"))
    task = Glue(dataset="cola", path=str(tmp_path), phenomena=str(path))
    with pytest.raises(DataError, match="line 3: Sem  Violation: found 'x'; allowed: 0, 1"):
        task.measure(tiny_task_model())
    for write, message in (
        (lambda: write_phenomena(path, ["another"], "11"), f"{path}: has none of the sentences of"),
        (
            lambda: write_phenomena(path, [f'"{sentences[0]}"', sentences[1]], "10", "10"),
            'line 2: Sentence: found \'""abc 0"\' in quotation marks, as spreadsheets write it',
        ),
        (
            lambda: path.write_text("Other\tSentence\tLabel\n1\tabc\t1\n"),
            "line 2: has no column of a phenomenon after Sentence; its columns are ['Other', 'Sentence'",
        ),
    ):
        write()
        with pytest.raises(DataError, match=re.escape(message)):
            task.measure(tiny_task_model())


def test_long_samples_are_reported_or_truncated(tmp_path, monkeypatch):
    path = write_glue(tmp_path, "sst2", "dev", [("abc", "", "0"), ("abcdefghi" * 20, "", "1")])
    monkeypatch.setattr(
        TaskModel,
        "head_scores",
        lambda model, examples, progress: [np.zeros((1, 2), np.float32)] * len(examples),
    )
    model = tiny_task_model(max_length=32)
    result = Glue(dataset="sst2", path=str(tmp_path)).measure(model)
    assert len(result.answers) == 1
    message = re.escape(f"{path}: line 3: has ") + r"\d+ positions; allowed: at most 32, or max_positions"
    assert re.match(message, result.refused[0])
    cut = Glue(dataset="sst2", path=str(tmp_path), max_positions=32).measure(model)
    assert [answer.question.groups["prompt_tokens"] for answer in cut.answers] == [
        result.answers[0].question.groups["prompt_tokens"],
        32,
    ]


def test_a_model_without_the_head_of_the_task_is_refused():
    named = [NamedTask("rte", Glue(dataset="rte", path="x", max_positions=64))]
    arms = arms_of_tasks(make_mixture("masked_lm", 128).arms, None, named)
    headed = {"head": "classification", "head_outputs": 2}
    check_tasks(named, arms, Config(model=ModelConfig(name="bigs", head_name="rte", **headed)), 64)
    needs = "; allowed: a model fine-tuned on rte, classification with 2 outputs"
    found, hawk = "task rte: found a model that has", ModelConfig(name="hawk", head_name="mrpc", **headed)
    for model, max_length, message in (
        (ModelConfig(name="bigs"), 64, f"{found} no head{needs}"),
        (hawk, None, f"{found} the head mrpc, classification{needs}"),
        (ModelConfig(name="bigs", head_name="rte", **headed), 32, "task glue: max_positions: found 64;"),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
            check_tasks(named, arms, Config(model=model), max_length)
