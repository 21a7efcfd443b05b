"""Instruction tuning: dialogues, templates, examples and the loss of answers."""

import pickle
import re

import numpy as np
import pytest

from birdie_jax import vocabulary
from birdie_jax.errors import DataError
from birdie_jax.generation import make_prompt
from birdie_jax.generation.likelihood import Likelihood
from birdie_jax.objectives import make_objective
from birdie_jax.tasks import PROMPT_OBJECTIVE, RecordedExamples, TaskModel, make_task, training_example
from birdie_jax.tasks.instructions import ChatTemplate, Instructions, TemplateFailed
from tests.tasks.json_lines import write_lines
from tests.trained_workdirs import small_tokenizer

SYSTEM, USER, ASSISTANT = ("system", "user", "assistant")


def messages(*turns):
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


DIALOGUE = messages(
    (SYSTEM, "be kind"), (USER, "hi"), (ASSISTANT, "hello"), (USER, "bye"), (ASSISTANT, "ciao")
)
RECORDS = [
    {"prompt": "add one to ten", "response": "eleven"},
    DIALOGUE,
    messages((USER, "on"), (ASSISTANT, "off")),
]


def task_of(path, **settings):
    task = make_task("instructions", {"path": str(path), **settings}, "config.finetune.stages.a")
    assert isinstance(task, Instructions)
    return task


def read(folder, records, **settings):
    return task_of(write_lines(folder / "a.jsonl", *records), **settings).read_turns()[0]


def test_the_prompt_of_an_answer_has_all_earlier_messages(tmp_path):
    turns = read(tmp_path, RECORDS)
    path = tmp_path / "a.jsonl"
    assert [(turn.name.removeprefix(f"{path}: "), turn.response) for turn in turns] == [
        ("line 1", "eleven"),
        *(("line 2 answer 1", "hello"), ("line 2 answer 2", "ciao")),
        ("line 3", "off"),
    ]
    # A single user message is unchanged. A longer dialogue has roles.
    assert turns[0].prompt == "add one to ten"
    assert turns[3].prompt == "on"
    assert turns[1].prompt == "system:\nbe kind\n\nuser:\nhi\n\nassistant:\n"
    assert turns[2].prompt == f"{turns[1].prompt}hello\n\nuser:\nbye\n\nassistant:\n"


def test_turns_last_reads_only_the_last_answer(tmp_path):
    turns = read(tmp_path, RECORDS, turns="last")
    assert [turn.response for turn in turns] == ["eleven", "ciao", "off"]
    assert turns[1].name.endswith("line 2 answer 2")


def test_a_custom_template_renders_the_prompt(tmp_path):
    template = (
        "{% for m in messages %}<{{ m['role'] }}>{{ m.content }}{% endfor %}{{ bos_token }}<{{ 'answer' }}>"
    )
    turns = read(tmp_path, RECORDS[:1], template=template)
    assert turns[0].prompt == "<user>add one to ten<answer>"


def test_examples_match_prompts(tmp_path):
    tokenizer, task = small_tokenizer(), task_of(write_lines(tmp_path / "a.jsonl", *RECORDS * 3))
    examples, (turns, _) = task.training_examples(tokenizer), task.read_turns()
    for_engine: object = examples
    assert isinstance(for_engine, RecordedExamples)
    assert len(examples) == len(turns) == len(examples.lengths) == 12
    for number, turn in enumerate(turns):
        expected = training_example(turn.prompt, turn.response, tokenizer)
        np.testing.assert_array_equal(examples[number].context, expected.context)
        np.testing.assert_array_equal(examples[number].target, expected.target)
        prompt = make_prompt(turn.prompt, make_objective(PROMPT_OBJECTIVE), tokenizer)
        np.testing.assert_array_equal(examples[number].context, prompt.context)
        assert examples[number].target[-1] == vocabulary.END
        assert examples.lengths[number] == len(expected.context) + len(expected.target)
        assert examples.name_of(number) == turn.name
    # Workers that make batches receive the task.
    assert pickle.loads(pickle.dumps(task)) == task


def test_the_hash_depends_on_all_examples(tmp_path):
    def sha256(records, **settings):
        task = task_of(write_lines(tmp_path / "a.jsonl", *records), **settings)
        return task.training_examples(small_tokenizer()).sha256

    assert sha256(RECORDS) == sha256(RECORDS)
    others = (sha256(RECORDS[:2]), sha256(RECORDS, turns="last"), sha256(RECORDS[::-1]))
    assert len({sha256(RECORDS), *others}) == 4


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages[0].name }}", "UndefinedError: "),
        ("{{ raise_exception('no system') }}", "TemplateError: no system"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError: access to attribute '__class__'"),
        ("{{ messages.append(1) }}", "SecurityError: "),
        ("{{ 1 // 0 }}", "ZeroDivisionError: "),
        ("{% for i in range(10**9) %}{% endfor %}", "OverflowError"),
    ],
)
def test_a_template_that_fails_is_refused(template, message, tmp_path):
    with pytest.raises(TemplateFailed, match=re.escape(message)):
        ChatTemplate(template).render([{"role": USER, "content": "a"}])
    with pytest.raises(DataError, match=re.escape(f"line 1: its template cannot be rendered: {message}")):
        read(tmp_path, RECORDS[:1], template=template)


class FakeModel(TaskModel):
    """A model with `tokens` per character of an answer, and a loss per token of the answer's length."""

    def __init__(self, tokens=2):
        self.tokenizer, self.tokens = small_tokenizer(), tokens

    def prompts(self, questions, refused, max_tokens):
        assert max_tokens == [len(self.tokenizer.encode(one.references[0])) for one in questions]
        objective = make_objective(PROMPT_OBJECTIVE)
        made = [make_prompt(question.prompt, objective, self.tokenizer) for question in questions]
        return list(questions), made, list(refused)

    def choice_likelihoods(self, prompts, choices, progress):
        return [[self._likelihood(len(text)) for text in one] for one in choices]

    def _likelihood(self, length):
        count = self.tokens * length
        return Likelihood(-float(count * length), count, False)


def test_the_loss_of_a_file_is_a_mean_over_tokens(tmp_path):
    result = task_of(write_lines(tmp_path / "a.jsonl", *RECORDS)).measure(FakeModel())
    assert [answer.metrics["loss"] for answer in result.answers] == [6, 5, 4, 3]
    assert [answer.weight for answer in result.answers] == [12, 10, 8, 6]
    assert result.refused == ()


def test_an_answer_without_tokens_weighs_nothing(tmp_path):
    result = task_of(write_lines(tmp_path / "a.jsonl", *RECORDS)).measure(FakeModel(tokens=0))
    assert {(answer.metrics["loss"], answer.weight) for answer in result.answers} == {(0, 0)}
