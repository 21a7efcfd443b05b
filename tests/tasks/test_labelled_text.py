"""Labelled texts: records, settings, classes, and scores of a head's predictions."""

import json
import re

import numpy as np
import pytest

from birdie_jax.config import Config, FinetuneConfig, ModelConfig
from birdie_jax.errors import ConfigError
from birdie_jax.models.task_head import Head
from birdie_jax.objectives import make_mixture
from birdie_jax.tasks import LENGTH_GROUP, task_of_flag
from birdie_jax.tasks.evaluation import NamedTask, arms_of_tasks, check_tasks
from birdie_jax.tasks.labelled_text import LabelledText
from birdie_jax.tasks.summary import mean_scores
from tests.tasks.json_lines import write_lines
from tests.tasks.tiny_task_model import tiny_task_model
from tests.trained_workdirs import small_tokenizer

CLASSES = ("mail", "spam", "news")


def test_records_hold_texts_or_pairs(tmp_path):
    path = write_lines(
        tmp_path / "a.jsonl",
        {"text": "abc", "label": "spam"},
        {"text": "abc", "text_pair": "def", "label": "mail"},
        {"text": "abc", "text_pair": None, "label": "news"},
    )
    task, tokenizer = LabelledText(path=path, classes=CLASSES, head_name="kind"), small_tokenizer()
    examples = task.training_examples(tokenizer)
    read = [tokenizer.decode(examples[number].context) for number in range(3)]
    assert read == ["[MASKED_LM]abc[SEP]", "[MASKED_LM]abc[SEP]def[SEP]", "[MASKED_LM]abc[SEP]"]
    assert [int(examples[number].labels[0]) for number in range(3)] == [2, 1, 3]
    assert task.head == Head("classification", "kind", 3, CLASSES)


def test_settings_name_the_fields(tmp_path):
    path = write_lines(
        tmp_path / "a.jsonl", {"premise": "abc", "hypothesis": "def", "gold": "b", "pid": "x"}
    )
    flag = f"labelled_text:path={path},classes={json.dumps(['a', 'b'])},text_field=premise,"
    task = task_of_flag(flag + "text_pair_field=hypothesis,label_field=gold,id_field=pid")
    (record,), _ = task.records()
    assert (record.name, record.sample.texts, record.sample.label) == ("x", ("abc", "def"), 2)


@pytest.mark.parametrize("count", [2, 3])
def test_classes_and_groups_are_scored(tmp_path, set_head_scores, count):
    rng = np.random.default_rng(count)
    labels, scores = rng.integers(count, size=40), rng.normal(size=(40, count))
    records = [
        {"text": "abc", "label": CLASSES[label], "kind": n % 2} for n, label in enumerate(labels.tolist())
    ]
    path = write_lines(tmp_path / "a.jsonl", *records)
    task = LabelledText(path=path, classes=CLASSES[:count], group_fields=("kind",))
    set_head_scores(scores.tolist())
    result = task.measure(tiny_task_model())
    predicted = scores.argmax(axis=1)
    assert [answer.answer for answer in result.answers] == [CLASSES[number] for number in predicted]
    means = mean_scores(task, result.answers)
    assert means["accuracy"].mean == pytest.approx((labels == predicted).mean())
    assert list(means) == ["accuracy", *["matthews_correlation"] * (count == 2)]
    if count == 2:
        # For two classes it equals Pearson's correlation.
        assert means["matthews_correlation"].mean == pytest.approx(np.corrcoef(labels, predicted)[0, 1])
    assert [answer.question.groups["kind"] for answer in result.answers] == [0, 1] * 20
    # [MASKED_LM], three bytes as tokens, [SEP].
    assert {answer.question.groups[LENGTH_GROUP] for answer in result.answers} == {
        len(task.training_examples(small_tokenizer())[0].context)
    }


def tuned_on(**stage):
    """Return the saved configuration of a run with a head of two classes."""
    model = ModelConfig(name="bigs", head="classification", head_name="label", head_outputs=2)
    return Config(model=model, finetune=FinetuneConfig(stages={"1": {"length": 8, "rows": 2, **stage}}))


def test_classes_in_another_order_than_the_models_are_refused():
    task = LabelledText(path="dev.jsonl", classes=("spam", "mail"))
    named = [NamedTask("post", task)]
    arms = arms_of_tasks(make_mixture("masked_lm", 128).arms, None, named)
    stage = {"task": "labelled_text", "path": "train.jsonl"}
    for same in (
        tuned_on(**stage, classes=["spam", "mail"]),
        # The classes of an unknown task are unknown.
        tuned_on(**stage | {"task": "of_another_program"}),
        tuned_on(**stage, classes=["spam"]),
    ):
        check_tasks(named, arms, same, None)
    message = (
        "task post: found the classes spam, mail; allowed: mail, spam, in this order, the order of the "
        "scores of the model's head label"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check_tasks(named, arms, tuned_on(**stage, classes=["mail", "spam"]), None)
