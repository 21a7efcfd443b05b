"""ContractNLI and QuALITY: samples, repeated identifiers, and scores of a head's predictions."""

import re

import pytest

from birdie_jax.errors import DataError
from birdie_jax.finetuning.stage_rows import GroupedExamples
from birdie_jax.models.choice_head import RIGHT_CHOICE, WRONG_CHOICE
from birdie_jax.models.task_head import Head
from birdie_jax.tasks.contract_nli import CLASSES, ContractNLI
from birdie_jax.tasks.quality import OPTIONS, Quality
from birdie_jax.tasks.summary import mean_scores
from tests.tasks.json_lines import write_lines
from tests.tasks.tiny_task_model import tiny_task_model
from tests.trained_workdirs import small_tokenizer


def contract(name, output, whole="abc def\n\nghi.\n\njkl"):
    return {"id": name, "pid": f"{name}_0", "input": whole, "output": output}


def test_a_sample_is_hypothesis_and_contract(tmp_path, set_head_scores):
    path = write_lines(tmp_path / "a.jsonl", *(contract(name, CLASSES[n]) for n, name in enumerate("xyz")))
    task, tokenizer = ContractNLI(path=str(path)), small_tokenizer()
    examples = task.training_examples(tokenizer)
    assert tokenizer.decode(examples[0].context) == "[MASKED_LM]abc def[SEP]ghi.\n\njkl[SEP]"
    assert [int(examples[number].labels[0]) for number in range(3)] == [1, 2, 3]
    assert task.head == Head("classification", "contract_nli", 3, CLASSES)
    set_head_scores([[3, 1, 2], [0, 1, 2], [0, 1, 2]])
    result = task.measure(tiny_task_model())
    assert [answer.answer for answer in result.answers] == [CLASSES[0], CLASSES[2], CLASSES[2]]
    assert mean_scores(task, result.answers)["accuracy"].mean == pytest.approx(2 / 3)
    cut = ContractNLI(path=str(path), max_positions=12).training_examples(tokenizer)
    assert cut.lengths.tolist() == [12] * 3


def question(name, label, difficult=0, options=("one", "two", "three", "four"), **more):
    return {
        **{"question_unique_id": name, "question": "abc?", "options": list(options)},
        **{"gold_label": label, "difficult": difficult, **more},
    }


def article(*questions, text="def ghi jkl"):
    return {"article_id": "7", "article": text, "questions": list(questions)}


def test_a_sample_is_question_with_option_and_article(tmp_path):
    path = write_lines(tmp_path / "dev.jsonl", article(question("p", 2)), article(question("q", 4)))
    task, tokenizer = Quality(path=str(path)), small_tokenizer()
    examples = task.training_examples(tokenizer)
    assert isinstance(examples, GroupedExamples)
    assert (len(examples), examples.group_size, task.head) == (2, 4, Head("choice", "quality", 4))
    group = examples.group(1)
    assert [tokenizer.decode(one.context) for one in group] == [
        f"[MASKED_LM]abc? {option}[SEP]def ghi jkl[SEP]" for option in ("one", "two", "three", "four")
    ]
    assert [int(one.labels[0]) for one in group] == [WRONG_CHOICE] * 3 + [RIGHT_CHOICE]
    assert examples.lengths[1] == sum(len(one.context) for one in group)
    assert examples.name_of(1) == f"{path}: line 2: questions[0]"


def test_the_answer_is_the_option_with_the_highest_score(tmp_path, set_head_scores):
    path = write_lines(
        tmp_path / "dev.jsonl", article(question("p", 2), question("q", 4, 1), question("r", 1, 1))
    )
    task = Quality(path=str(path))
    set_head_scores([[score] for score in (0, 5, 1, 2, 3, 2, 1, 0, 9, 8, 7, 6)])
    result = task.measure(tiny_task_model())
    assert [answer.answer for answer in result.answers] == ["two", "one", "one"]
    assert [answer.metrics["accuracy"] for answer in result.answers] == [1, 0, 1]
    assert [answer.question.groups["difficult"] for answer in result.answers] == [0, 1, 1]


def test_a_question_with_long_options_is_reported(tmp_path, set_head_scores):
    path = write_lines(
        tmp_path / "dev.jsonl",
        article(question("p", 2)),
        article(question("q", 1, options=("a", "abc", "abc def", "abc def ghi")), text="abc " * 40),
    )
    set_head_scores([[1.0]] * OPTIONS)
    result = Quality(path=str(path)).measure(tiny_task_model(max_length=64))
    assert [answer.question.name for answer in result.answers] == ["p"]
    (line,) = result.refused
    assert line.startswith(f"{path}: line 2: questions[0]: has ")


P2, P1, Q1, R1 = question("p", 2), question("p", 1), question("q", 1), question("r", 1)


@pytest.mark.parametrize(
    ("articles", "place", "left"),
    [
        ((article(P2, Q1), article(R1, P1)), "line 2: questions[1]", ["p", "q"]),
        ((article(P2, P1), article(P1)), "line 1: questions[1]", ["p"]),
    ],
)
def test_a_repeated_identifier_is_refused_with_its_article(tmp_path, articles, place, left):
    """Comparisons pair answers by id. The ids of a refused article become free."""
    path = write_lines(tmp_path / "dev.jsonl", *articles)
    message = f"{place}: question_unique_id: found 'p', which line 1: questions[0] has; allowed: another"
    full_message = f"{path}: 1 of 2 records are bad: {message}"
    with pytest.raises(DataError, match=f"^{re.escape(full_message)}$"):
        Quality(path=str(path)).questions()
    questions, refused = Quality(path=str(path), skip_bad_records=True).questions()
    assert [one.name for one in questions] == left
    assert refused == [f"{path}: {message}"]
