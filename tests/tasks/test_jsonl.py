"""The task jsonl: records, settings and metrics."""

import math

import numpy as np
import pytest

from birdie_jax.generation.likelihood import Likelihood
from birdie_jax.generation.text_generation import TextAnswer
from birdie_jax.tasks import Question, RecordedExamples, task_of_flag
from birdie_jax.tasks.jsonl import JsonlTask
from tests.tasks.json_lines import write_lines
from tests.tasks.tiny_task_model import tiny_task_model
from tests.trained_workdirs import small_tokenizer

WRITTEN = ({"prompt": "a b?", "reference": ["c", "d e"], "id": "x"}, {"prompt": "f?", "reference": "g é"})
CHOSEN = (
    {"prompt": "a?", "choices": ["b", "c c"], "label": "B"},
    {"prompt": "d?", "choices": ["e", "f"], "label": 0},
)


def read_questions(path, **settings):
    return JsonlTask(path=path, **settings).questions(small_tokenizer())


def test_records_become_questions(tmp_path):
    path = write_lines(tmp_path / "q.jsonl", *WRITTEN)
    assert read_questions(path) == (
        [Question("x", "a b?", ("c", "d e")), Question("2", "f?", ("g é",))],
        [],
    )
    path = write_lines(tmp_path / "c.jsonl", *CHOSEN)
    questions, _ = read_questions(path, metrics=("accuracy",))
    assert questions[0] == Question("1", "a?", ("c c",), ("b", "c c"))
    assert questions[1] == Question("2", "d?", ("e",), ("e", "f"))


def test_settings_name_the_fields(tmp_path):
    record = {"frage": "a?", "antwort": "b", "nr": 5, "tiefe": 3, "jahr": 1900}
    path = write_lines(tmp_path / "q.jsonl", record)
    task = task_of_flag(
        f"jsonl:path={path},prompt_field=frage,reference_field=antwort,id_field=nr,"
        'group_fields=["tiefe","jahr"],metrics=["f1","log_likelihood"]'
    )
    assert isinstance(task, JsonlTask)
    questions, _ = task.questions(small_tokenizer())
    assert questions == [Question("5", "a?", ("b",), groups={"tiefe": 3, "jahr": 1900})]
    assert task.main_metric == "f1"


class AnsweringModel:
    """Returns preset answers, and records its requests."""

    def __init__(self, answers=(), likelihoods=()):
        self.tokenizer = small_tokenizer()
        self.answers, self.likelihoods, self.requests = answers, likelihoods, []

    def prompts(self, questions, refused, max_tokens):
        self.requests.append(max_tokens)
        return list(questions), list(questions), list(refused)

    def generate(self, prompts, max_tokens, progress):
        progress(len(prompts), len(prompts))
        return self.answers

    def choice_likelihoods(self, prompts, choices, progress):
        self.requests.append(choices)
        progress(len(prompts), len(prompts))
        return self.likelihoods


def measure(task, model, progress=None):
    # Skip the type check of tests, because the model is a fake.
    measure_unchecked = JsonlTask.measure.__wrapped__
    return measure_unchecked(task, model, progress or (lambda done, of_all: None))


def test_generated_answers_and_likelihoods_are_scored(tmp_path):
    path = write_lines(tmp_path / "q.jsonl", *WRITTEN)
    metrics = ("log_likelihood", "exact_match", "f1", "contains_verbatim")
    answers = [TextAnswer("It is D E.", 5, "[EOS]"), TextAnswer("x", 1, "max_tokens")]
    model = AnsweringModel(answers, [[Likelihood(-2.5, 1, False)], [Likelihood(-7.0, 2, True)]])
    shown = []
    result = measure(JsonlTask(path=path, metrics=metrics), model, lambda *done: shown.append(done))
    assert model.requests == [[64, 64], [("c",), ("g é",)]]
    assert shown == [(2, 4), (4, 4)]
    first, second = result.answers
    assert dict(first.metrics) == pytest.approx(
        {"log_likelihood": -2.5, "exact_match": 0, "f1": 2 * 2 / (4 + 2), "contains_verbatim": 1}
    )
    assert list(first.metrics) == list(metrics)
    assert (first.answer, second.answer, first.weight) == ("It is D E.", "x", 1)
    assert second.metrics["log_likelihood"] == -7
    assert second.details["stopped_by"] == "max_tokens"


def test_choices_are_scored_by_token_and_by_sum(tmp_path):
    path = write_lines(tmp_path / "q.jsonl", *CHOSEN)
    found = [
        [Likelihood(-3.0, 1, False), Likelihood(-4.0, 2, False)],
        [Likelihood(-3.0, 1, False), Likelihood(-4.0, 2, False)],
    ]
    model = AnsweringModel(likelihoods=found)
    metrics = ("accuracy", "accuracy_of_sums", "log_likelihood")
    first, second = measure(JsonlTask(path=path, metrics=metrics), model).answers
    (chosen, _), encode = model.requests[1], model.tokenizer.encode
    assert model.requests[0][0] == max(len(encode(text)) for text in chosen)
    assert first.metrics == {"accuracy": 1, "accuracy_of_sums": 0, "log_likelihood": -4}
    assert second.metrics == {"accuracy": 0, "accuracy_of_sums": 1, "log_likelihood": -3}
    assert (first.answer, second.answer) == ("c c", "f")


def test_bits_per_byte_is_a_mean_over_bytes(tmp_path):
    path = write_lines(tmp_path / "q.jsonl", *WRITTEN)
    model = AnsweringModel(likelihoods=[[Likelihood(-2.0, 1, False)], [Likelihood(-6.0, 3, False)]])
    answers = measure(JsonlTask(path=path, metrics=("bits_per_byte",)), model).answers
    assert [one.weight for one in answers] == [1, 4]
    mean = sum(one.metrics["bits_per_byte"] * one.weight for one in answers) / 5
    assert mean == pytest.approx((2 + 6) / math.log(2) / 5)


def test_a_model_scores_the_choices(tmp_path):
    path = write_lines(tmp_path / "q.jsonl", CHOSEN[0])
    model = tiny_task_model()
    (scored,) = JsonlTask(path=path, metrics=("accuracy", "log_likelihood")).measure(model).answers
    _, prompts, _ = model.prompts([scored.question], [], 0)
    ((alone,),) = model.choice_likelihoods(prompts, [scored.question.references])
    assert scored.metrics["log_likelihood"] == pytest.approx(alone.log_likelihood, rel=1e-5)
    assert scored.details["likelihood_tokens"] == [
        len(model.tokenizer.encode(text)) for text in ("b", "c c")
    ]


def test_questions_are_training_examples(tmp_path):
    tokenizer = small_tokenizer()
    path = write_lines(tmp_path / "q.jsonl", *WRITTEN)
    examples = JsonlTask(path=path).training_examples(tokenizer)
    assert isinstance(examples, RecordedExamples)
    assert [tokenizer.decode(examples[n].target[:-1]) for n in range(len(examples))] == ["c", "g é"]
    assert examples.lengths.dtype == np.int64
    assert examples.lengths.tolist() == [len(examples[n].context) + len(examples[n].target) for n in (0, 1)]
    again = JsonlTask(path=path).training_examples(tokenizer)
    assert again.sha256 == examples.sha256
    # Another reference changes the hash.
    write_lines(tmp_path / "q.jsonl", {**WRITTEN[0], "reference": "d e"}, WRITTEN[1])
    assert JsonlTask(path=path).training_examples(tokenizer).sha256 != examples.sha256
    chosen = JsonlTask(path=write_lines(tmp_path / "c.jsonl", *CHOSEN), metrics=("accuracy",))
    assert tokenizer.decode(chosen.training_examples(tokenizer)[0].target[:-1]) == "c c"
