"""Records, tables and files of evaluations, and names of tasks."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.errors import ConfigError, ScoreError
from birdie_jax.evaluation_record import EvaluatedModel, parse_evaluation
from birdie_jax.storage import to_plain
from birdie_jax.tasks import TASKS, Question, ScoredAnswer, TaskResult
from birdie_jax.tasks.evaluation import (
    NamedTask,
    answers_to_jsonl,
    evaluate,
    files_of_tasks,
    tasks_of_config,
    tasks_of_flags,
)
from birdie_jax.tasks.evaluation_table import (
    breakdown_tables,
    category_tables,
    comparison_table,
    evaluation_table,
    group_tables,
)
from birdie_jax.tasks.summary import paired_differences, summarise, value_ranges
from tests.tasks.tiny_task_model import tiny_task_model
from tests.tasks.toy_tasks import Lengths, Picks

MODEL = EvaluatedModel("runs/a", 5, "c", "p", "prefix_lm")


@pytest.fixture(autouse=True)
def toy_tasks(monkeypatch):
    monkeypatch.setitem(TASKS, "lengths", Lengths)
    monkeypatch.setitem(TASKS, "picks", Picks)


def answers(count=40, gain=0.0):
    return tuple(
        ScoredAnswer(
            Question(f"q{number}", "a", ("b",), groups={"numbers": number % 4, "length": 10 * number}),
            "b",
            {"characters": number % 10 + gain, "right": float(number % 2)},
        )
        for number in range(count)
    )


def record(found=None, name="lengths"):
    result = TaskResult(answers() if found is None else found, ("file line 2: bad",))
    return summarise(name, Lengths(), MODEL, result, seconds=1.5)


def test_a_record_survives_a_round_trip():
    made = record()
    assert made.metrics["characters"].mean == pytest.approx(4.5)
    assert made.settings == {"max_tokens": 6}
    assert made.refused == ["file line 2: bad"]
    assert [(part.low, part.high, part.count) for part in made.groups["numbers"]] == [
        (value, value, 10) for value in range(4)
    ]
    assert sum(part.count for part in made.groups["length"]) == 40
    assert made.groups["numbers"][1].metrics["right"].mean == 1.0
    assert parse_evaluation(json.dumps(made.to_json()).encode(), "file") == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 9}, "file: found format_version 9; allowed: 1"),
        ({"answers": "many"}, "file.answers: found 'many'"),
        ({"model": {}}, "file.model.origin: missing"),
    ],
)
def test_a_damaged_record_is_named(change, message):
    with pytest.raises(ConfigError) as caught:
        parse_evaluation(json.dumps(record().to_json() | change).encode(), "file")
    assert message in str(caught.value)
    with pytest.raises(ConfigError, match="file: found no JSON"):
        parse_evaluation(b"{", "file")


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=60))
def test_every_value_is_in_one_range(values):
    ranges = value_ranges(np.array(values))
    for value in values:
        assert sum(low <= value <= high for low, high in ranges) == 1
    assert ranges == sorted(ranges)
    assert len(ranges) <= 20


def test_ranges_are_values_powers_of_two_or_equal_widths():
    assert value_ranges(np.array([1, 4, 2, 4])) == [(1, 1), (2, 2), (4, 4)]
    assert value_ranges(np.arange(100, 2049))[-2:] == [(513, 1024), (1025, 2048)]
    assert len(value_ranges(np.arange(1000, 1801))) == 8


def test_the_table_shows_metrics_and_skipped_questions():
    text = evaluation_table([record(), record((), "other")])
    lines = text.splitlines()
    assert lines[0].split() == ["task", "metric", "mean", "95", "%", "interval", "answers"]
    assert lines[1].split()[:3] == ["lengths", "characters", "4.5000"]
    assert lines[1].split()[-1] == "40"
    assert lines[2].split()[:2] == ["right", "0.5000"]
    assert lines[3].split() == ["other", "none", "0"]
    assert "lengths: 1 skipped:" in text
    assert "  file line 2: bad" in text
    by_group = group_tables(record())
    assert "lengths by numbers" in by_group
    assert "lengths by length" in by_group


def test_the_table_shortens_the_largest_numbers():
    made = record()
    largest = replace(made.metrics["right"], mean=sys.float_info.max)
    assert "1.798e+308" in evaluation_table([replace(made, metrics={"perplexity": largest})])


def categorised(*categories):
    """Return a record of four answers with these categories; answers 1 and 3 are right."""
    found = tuple(
        one._replace(question=one.question._replace(categories=of))
        for one, of in zip(answers(4), categories, strict=True)
    )
    return summarise("lengths", Lengths(), MODEL, TaskResult(found), seconds=1.0)


def test_each_category_has_a_row():
    """A question may have several, no or unknown categories."""
    made = categorised({"kind": ("b", "a")}, {"kind": ("a",)}, {"kind": ()}, {})
    found = made.categories["kind"]
    assert found.known == 3
    assert [(one.name, one.count) for one in found.scores] == [("a", 2), ("b", 1)]
    assert [one.metrics["right"].mean for one in found.scores] == [0.5, 0.0]
    assert parse_evaluation(json.dumps(made.to_json()).encode(), "file") == made
    printed = category_tables(made)
    assert breakdown_tables(made) == f"{group_tables(made)}\n\n{printed}"
    title, head, *rows = printed.splitlines()
    assert title == "lengths by kind, known of 3 of 4 answers"
    assert head.split() == ["kind", "characters", "95", "%", "interval", "answers"]
    assert [row.split() for row in rows] == [
        ["a", "0.5000", "0.0000", "..", "1.0000", "2"],
        ["b", "0.0000", "0.0000", "..", "0.0000", "1"],
    ]


def test_a_record_without_categories_is_readable():
    made = record()
    fields = made.to_json()
    del fields["categories"]
    assert parse_evaluation(json.dumps(fields).encode(), "file") == made
    assert category_tables(made) == ""


def test_the_comparison_shows_paired_differences():
    first, second = answers(), answers(gain=1.0)[5:]
    differences, pairs = paired_differences(Lengths(), first, second)
    assert pairs == 35
    assert differences["characters"].mean == pytest.approx(1.0)
    assert differences["right"].low == differences["right"].high == 0
    text = comparison_table(
        ["runs/a", "runs/b"], [[record(first)], [record(second)]], [[(differences, pairs)]]
    )
    assert "+1.0000" in text
    assert "runs/b" in text
    assert paired_differences(Lengths(), first, ()) == ({}, 0)


def test_answers_with_different_metrics_are_refused():
    odd = answers(2)[1]._replace(metrics={"other": 1.0})
    with pytest.raises(ValueError, match="question q1: has the metrics other; allowed: those of the"):
        record((answers(1)[0], odd))


def test_answers_are_written_as_json_lines():
    prompt, kind = "prompt\n\ud800", {"kind": ("a",)}
    question = Question("é", prompt, ("a",), ("a", "b"), {"numbers": 2}, categories=kind)
    scored = ScoredAnswer(question, "b", {"accuracy": 0.0}, 2.0, {"tokens": [1, 2]})
    (line,) = answers_to_jsonl([scored]).splitlines()
    found = json.loads(line)
    assert (found["name"], found["prompt"], found["choices"]) == ("é", prompt, ["a", "b"])
    assert (found["categories"], found["details"]) == ({"kind": ["a"]}, {"tokens": [1, 2]})
    assert (found["answer"], found["weight"], found["groups"]) == ("b", 2.0, {"numbers": 2})


def test_flags_name_evaluations():
    named = tasks_of_flags(["lengths", "short=lengths:max_tokens=3", "picks"])
    assert named == [("lengths", Lengths()), ("short", Lengths(max_tokens=3)), ("picks", Picks())]
    with pytest.raises(
        ConfigError, match="found 2 evaluations with the name lengths; allowed: a name for each"
    ):
        tasks_of_flags(["lengths", "lengths:max_tokens=3"])
    for name in ("", "x" * 101):
        with pytest.raises(
            ConfigError, match=r"^--task: found the name '.*; allowed: letters, digits, und"
        ):
            tasks_of_flags([f"{name}=lengths"])


def test_settings_name_the_files_that_a_task_reads():
    flags = ["a=jsonl:path=q.jsonl", "phonebook", "b=perplexity:path=texts", "masked_text:prepared=data"]
    flags += ["copying_by_length:source=a.txt", "glue:dataset=cola,path=CoLA,phenomena=major.tsv"]
    named = tasks_of_flags(flags)
    assert [(read.flag, read.path) for read in files_of_tasks(named)] == [
        ("path of --task a", "q.jsonl"),
        ("path of --task b", "texts"),
        ("prepared of --task masked_text", "data"),
        ("source of --task copying_by_length", "a.txt"),
        ("path of --task glue", "CoLA"),
        ("phenomena of --task glue", "major.tsv"),
    ]


def test_a_nan_metric_is_refused(monkeypatch):
    found = TaskResult(answers(3) + answers(1, gain=float("nan")), ())
    monkeypatch.setattr(Lengths, "measure", lambda *_: found)
    with pytest.raises(ScoreError, match=r"^runs/a step 5: task short: found NaN as characters; allowed: "):
        evaluate(NamedTask("short", Lengths()), tiny_task_model(), MODEL)


def test_sections_name_evaluations():
    section = {"z": {"task": "picks"}, "a": {"task": "lengths", "max_tokens": 2}}
    assert tasks_of_config(section, "config.eval.tasks") == [("a", Lengths(max_tokens=2)), ("z", Picks())]
    with pytest.raises(ConfigError, match=r"config.eval.tasks: found the name 'a/b'; allowed: letters"):
        tasks_of_config({"a/b": {"task": "picks"}}, "config.eval.tasks")
    assert to_plain(Lengths()) == {"max_tokens": 6}
