"""SQuAD: questions in the paper's format, scores, and errors that name the location."""

import copy
import json
import re
from functools import partial

import pytest

from birdie_jax.errors import ConfigError, DataError
from birdie_jax.tasks import LENGTH_GROUP, Question, task_of_flag
from birdie_jax.tasks.squad import Squad
from tests.tasks.tiny_task_model import tiny_task_model
from tests.trained_workdirs import small_tokenizer

TOWER = "The tower of Pisa leans. Its builders, in 1173, did not mean it to."
RIVER = "The Arno\nis a river."


def question(name, text, *answers, **more):
    return {
        "id": name,
        "question": text,
        "answers": [{"text": answer, "answer_start": start} for answer, start in answers],
        **more,
    }


def content(version="1.1"):
    when = question("q1", "When was it begun?", ("1173", 42), ("in 1173", 39), ("1173", 42))
    what = question("q2", "What leans?", ("The tower", 0))
    paragraphs = [
        {"context": TOWER, "qas": [when, what]},
        {"context": RIVER, "qas": [question("q3", "What is the Arno?", ("a river", 12))]},
    ]
    if version == "v2.0":
        for paragraph in paragraphs:
            for entry in paragraph["qas"]:
                entry["is_impossible"] = False
        plausible = [{"text": "Arno", "answer_start": 4}]
        none = question("q4", "Where is it?", is_impossible=True, plausible_answers=plausible)
        paragraphs[1]["qas"].insert(0, none)
    return {"version": version, "data": [{"title": "Pisa", "paragraphs": paragraphs}]}


def write(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def read_questions(path, **settings):
    return Squad(path=str(path), **settings).questions(small_tokenizer())


def test_questions_have_the_format_of_the_paper(tmp_path):
    path = write(tmp_path / "dev.json", content())
    questions, refused = read_questions(path)
    assert questions == [
        Question("q1", f"{TOWER}\n\nWhen was it begun?", ("1173", "in 1173")),
        Question("q2", f"{TOWER}\n\nWhat leans?", ("The tower",)),
        Question("q3", f"{RIVER}\n\nWhat is the Arno?", ("a river",)),
    ]
    assert refused == []
    assert read_questions(path, separator="")[0][1].prompt == f"{TOWER}What leans?"


def test_unanswerable_questions_are_counted_and_reported(tmp_path):
    path = write(tmp_path / "dev-v2.json", content("v2.0"))
    questions, refused = read_questions(path)
    assert [one.name for one in questions] == ["q1", "q2", "q3"]
    assert refused == [f"{path}: 1 unanswerable questions are skipped"]


def test_defaults_match_the_paper():
    task = task_of_flag("squad:path=dev.json")
    assert isinstance(task, Squad)
    assert task == Squad(path="dev.json")
    assert (task.name, task.max_tokens, task.main_metric) == ("squad", 64, "contains")
    with pytest.raises(ConfigError, match="is for evaluation alone"):
        task.training_examples(small_tokenizer())


@pytest.mark.parametrize(
    ("answer", "scores"),
    [
        ("It was begun in 1173.", {"exact_match": 0, "f1": 2 * 2 / (5 + 2), "contains": 1}),
        ("In 1173!", {"exact_match": 1, "f1": 1, "contains": 1}),
        ("in 1372", {"exact_match": 0, "f1": 0.5, "contains": 0}),
        ("", {"exact_match": 0, "f1": 0, "contains": 0}),
    ],
)
def test_an_answer_is_scored_by_its_best_reference(answer, scores):
    question_of_two = Question("q1", "", ("1173", "in 1173"))
    assert Squad(path="x").score(question_of_two, answer) == pytest.approx(scores)


def test_a_start_may_be_off_by_one_as_in_the_official_file(tmp_path):
    value = content()
    answer = value["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]
    for start, is_good in ((40, False), (41, True), (42, True), (43, True), (44, False)):
        answer["answer_start"] = start
        path = write(tmp_path / "dev.json", value)
        if is_good:
            assert len(read_questions(path)[0]) == 3
        else:
            with pytest.raises(DataError, match=re.escape("found '1173' at answer_start")):
                read_questions(path)


Q1 = "data[0].paragraphs[0].qas[0]"


def put(new, *path):
    """Return a function that sets the value at a path of a file; `...` deletes it."""

    def change(value):
        *inner, last = path
        for key in inner:
            value = value[key]
        value[last] = new
        if new is ...:
            del value[last]

    return change


drop = partial(put, ...)
FIRST = ("data", 0, "paragraphs", 0, "qas", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("data"), "has no field 'data'; its fields are ['version']"),
        (put({}, "data"), "data: found {} (dict); allowed: a list of Any"),
        (drop("data", 0, "paragraphs"), "data[0]: has no field 'paragraphs'"),
        (put(7, "data", 0), "data[0]: found 7; allowed: a JSON object"),
        (put(None, "data", 0, "paragraphs", 1, "context"), "data[0].paragraphs[1].context: found None"),
        (drop("data", 0, "paragraphs", 1, "qas"), "data[0].paragraphs[1]: has no field 'qas'"),
        (drop(*FIRST, "id"), f"{Q1}: has no field 'id'"),
        (put(5, *FIRST, "id"), f"{Q1}.id: found 5 (int); allowed: str"),
        (put("q2", *FIRST, "id"), "data[0].paragraphs[0].qas[1].id: found 'q2' again; allowed: an id that"),
        (put(" ", *FIRST, "question"), f"{Q1}.question: found ' '; allowed: text with more than white"),
        (put([], *FIRST, "answers"), f"{Q1}: found 0 answers and is_impossible false; allowed: at least"),
        (put(True, *FIRST, "is_impossible"), f"{Q1}: found 3 answers and is_impossible true; allowed: "),
        (drop(*FIRST, "answers", 1, "text"), f"{Q1}.answers[1]: has no field 'text'"),
        (put("9", *FIRST, "answers", 1, "answer_start"), f"{Q1}.answers[1].answer_start: found '9' (str)"),
        (put(-5, *FIRST, "answers", 0, "answer_start"), f"{Q1}.answers[0]: found '1173' at answer_start"),
        (put(10**9, *FIRST, "answers", 0, "answer_start"), "where the context has ''; allowed: a part of"),
        (put("1174", *FIRST, "answers", 0, "text"), "found '1174' at answer_start 42, where the context"),
    ],
)
def test_errors_name_the_location(tmp_path, change, message):
    value = copy.deepcopy(content())
    change(value)
    path = write(tmp_path / "dev.json", value)
    with pytest.raises(DataError) as caught:
        read_questions(path)
    assert f"{path}: 1 of " in str(caught.value)
    assert " records are bad: " in str(caught.value)
    assert message in str(caught.value)
    if message.startswith(("data[0].paragraphs", Q1)):
        questions, refused = read_questions(path, skip_bad_records=True)
        assert 0 < len(questions) < 3
        assert message in refused[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; allowed: a JSON file of SQuAD v1.1 or v2.0"),
        ('{"data": [', "is not JSON: Expecting value (line 1, character 11)"),
        ('{"data": []}', "holds no answerable question, and 0 unanswerable ones; allowed: at least one"),
        ("[]", "found []; allowed: a JSON object"),
        ('{"data": "\\ud800"}', "found the lone surrogate '\\ud800'"),
    ],
)
def test_a_file_of_another_format_is_refused(tmp_path, text, message):
    path = write(tmp_path / "dev.json", text)
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        read_questions(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_model_answers_the_questions(tmp_path):
    path = write(tmp_path / "dev.json", content("v2.0"))
    model = tiny_task_model()
    task = Squad(path=str(path), max_tokens=4)
    result = task.measure(model)
    assert [one.question.name for one in result.answers] == ["q1", "q2", "q3"]
    for one in result.answers:
        assert one.metrics == task.score(one.question, one.answer)
        # The prompt has the marker of prefix_lm and the start token.
        expected = len(model.tokenizer.encode(one.question.prompt)) + 2
        assert one.question.groups[LENGTH_GROUP] == expected
        assert one.details["tokens"] <= 4
    assert len(result.refused) == 1


def test_max_questions_spreads_questions_over_the_file(tmp_path):
    entries = [question(f"q{number}", "What leans?", ("The tower", 0)) for number in range(7)]
    data = [{"title": "Pisa", "paragraphs": [{"context": TOWER, "qas": entries}]}]
    path = write(tmp_path / "dev.json", {"version": "1.1", "data": data})
    for limit, kept in ((1, [0]), (2, [0, 3]), (3, [0, 2, 4]), (7, range(7)), (9, range(7))):
        questions, _ = read_questions(path, max_questions=limit)
        assert [one.name for one in questions] == [f"q{number}" for number in kept]
