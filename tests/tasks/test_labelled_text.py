"""Labelled texts of one's own: their records, what is wrong in them, and scores of what a head tells."""

import json
import re

import numpy as np
import pytest

from birdie_jax.config import Config, FinetuneConfig, ModelConfig
from birdie_jax.errors import ConfigError, DataError
from birdie_jax.models.task_head import Head
from birdie_jax.objectives import make_mixture
from birdie_jax.tasks import LENGTH_GROUP, task_of_flag
from birdie_jax.tasks.evaluation import NamedTask, arms_of_tasks, check_tasks
from birdie_jax.tasks.labelled_text import LabelledText
from birdie_jax.tasks.summary import mean_scores
from birdie_jax.tasks.task_model import TaskModel
from tests.tasks.tiny_task_model import tiny_task_model
from tests.trained_workdirs import small_tokenizer

CLASSES = ("mail", "spam", "news")


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def head_that_says(monkeypatch, scores):
    monkeypatch.setattr(
        TaskModel, "head_scores", lambda *_: [np.array([score], np.float32) for score in scores]
    )


def test_records_are_texts_and_pairs(tmp_path):
    path = write(
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


def test_fields_have_the_names_that_are_asked_for(tmp_path):
    path = write(tmp_path / "a.jsonl", {"premise": "abc", "hypothesis": "def", "gold": "b", "pid": "x"})
    flag = f"labelled_text:path={path},classes={json.dumps(['a', 'b'])},text_field=premise,"
    task = task_of_flag(flag + "text_pair_field=hypothesis,label_field=gold,id_field=pid")
    (record,), _ = task.records()
    assert (record.name, record.sample.texts, record.sample.label) == ("x", ("abc", "def"), 2)


@pytest.mark.parametrize("count", [2, 3])
def test_scores_are_told_of_classes_and_groups(tmp_path, monkeypatch, count):
    rng = np.random.default_rng(count)
    labels, scores = rng.integers(count, size=40), rng.normal(size=(40, count))
    records = [
        {"text": "abc", "label": CLASSES[label], "kind": n % 2} for n, label in enumerate(labels.tolist())
    ]
    path = write(tmp_path / "a.jsonl", *records)
    task = LabelledText(path=path, classes=CLASSES[:count], group_fields=("kind",))
    head_that_says(monkeypatch, scores.tolist())
    result = task.measure(tiny_task_model())
    told = scores.argmax(axis=1)
    assert [answer.answer for answer in result.answers] == [CLASSES[number] for number in told]
    means = mean_scores(task, result.answers)
    assert means["accuracy"].mean == pytest.approx((labels == told).mean())
    assert list(means) == ["accuracy", *["matthews_correlation"] * (count == 2)]
    if count == 2:
        # Of two classes it is Pearson's correlation.
        assert means["matthews_correlation"].mean == pytest.approx(np.corrcoef(labels, told)[0, 1])
    assert [answer.question.groups["kind"] for answer in result.answers] == [0, 1] * 20
    # [MASKED_LM], three bytes as tokens, [SEP].
    assert {answer.question.groups[LENGTH_GROUP] for answer in result.answers} == {
        len(task.training_examples(small_tokenizer())[0].context)
    }


GOOD = {"text": "abc", "label": "mail", "kind": 1, "id": "a"}
BAD = [
    ({**GOOD, "id": "b", "label": "post"}, "line 2: label: found 'post'; allowed: mail, spam, news"),
    ({**GOOD, "id": "b", "text": " "}, "line 2: text: found ' '; allowed: text with more than white"),
    ({**GOOD, "id": "b", "text_pair": 3}, "line 2: text_pair: found 3"),
    ({"text": "abc", "label": "mail", "id": "b"}, "line 2: has no field 'kind'; its fields are ["),
    (GOOD, "line 2: found the id 'a', which line 1 has; allowed: another"),
]


@pytest.mark.parametrize(("record", "said"), BAD)
def test_bad_records_are_named(tmp_path, record, said):
    path = write(tmp_path / "a.jsonl", GOOD, record, {**GOOD, "id": "c"})
    task = LabelledText(path=path, classes=CLASSES, group_fields=("kind",))
    with pytest.raises(DataError, match=f"^{re.escape(f'{path}: 1 of 3 records are bad: {said}')}"):
        task.records()
    skipping = LabelledText(path=path, classes=CLASSES, group_fields=("kind",), skip_bad_records=True)
    records, refused = skipping.records()
    assert [record.name for record in records] == ["a", "c"]
    assert len(refused) == 1


def tuned_on(**stage):
    """The configuration of a run with a head of two classes, as it is saved."""
    model = ModelConfig(name="bigs", head="classification", head_name="label", head_outputs=2)
    return Config(model=model, finetune=FinetuneConfig(stages={"1": {"length": 8, "rows": 2, **stage}}))


def test_classes_in_another_order_than_the_models_are_refused():
    task = LabelledText(path="dev.jsonl", classes=("spam", "mail"))
    named = [NamedTask("post", task)]
    arms = arms_of_tasks(make_mixture("masked_lm", 128).arms, None, named)
    stage = {"task": "labelled_text", "path": "train.jsonl"}
    for same in (
        tuned_on(**stage, classes=["spam", "mail"]),
        # Of a task that is not known here, nothing is known of its classes.
        tuned_on(**stage | {"task": "of_another_program"}),
        tuned_on(**stage, classes=["spam"]),
    ):
        check_tasks(named, arms, same, None)
    said = (
        "task post: found the classes spam, mail; allowed: mail, spam, in this order: it is that of the "
        "scores of the model's head label"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        check_tasks(named, arms, tuned_on(**stage, classes=["mail", "spam"]), None)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('classes=["a"]', "classes: found ['a']; allowed: two or more, each once"),
        ('classes=["a","a"]', "classes: found ['a', 'a']; allowed: two or more, each once"),
        (
            'classes=["a","b"],head_name=pooler',
            "head_name: found 'pooler'; allowed: another name: task_head/pooler is the layer that all",
        ),
        (
            'classes=["a","b"],group_fields=["prompt_tokens"]',
            "group_fields: found ['prompt_tokens']; allowed",
        ),
    ],
)
def test_bad_settings_are_named(settings, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        task_of_flag(f"labelled_text:path=a.jsonl,{settings}")
