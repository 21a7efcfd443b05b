"""Tasks with prompts of tokens: answers, scores and processes."""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import pytest

from birdie_jax.generation import Prompt, generate
from birdie_jax.models import build_model
from birdie_jax.objectives import Arm, make_objective
from birdie_jax.tasks import Question, Share, TaskModel, TokenTask
from birdie_jax.tasks.task import score_tokens
from birdie_jax.vocabulary import DONE, END
from tests.tasks.tokenizers import word_tokenizer
from tests.trained_workdirs import micro_config, random_params

MAX_LENGTH = 64


@dataclass(frozen=True, kw_only=True)
class GivenQuestions(TokenTask):
    """Has the given questions."""

    name: ClassVar[str] = "given_questions"

    given: tuple[Question, ...]

    def questions(self, tokenizer):
        del tokenizer
        return self.given, ("record 3: broken",)


@cache
def random_model():
    config = micro_config()
    vocab_size = word_tokenizer().vocab_size
    return build_model(config.model, vocab_size), random_params(config, vocab_size, 0)


def task_model(**settings):
    arm = Arm("copying", make_objective("copying"), "copying")
    return TaskModel(*random_model(), word_tokenizer(), arm, max_length=MAX_LENGTH, rows=4, **settings)


def some_questions():
    """Return questions with the model's greedy answers as references."""
    rng = np.random.default_rng(0)

    def draw(count):
        return rng.integers(256, 256 + word_tokenizer().num_pieces, count).astype(np.int32)

    prompts = [
        Prompt(draw(context), draw(prefix)) for context, prefix in ((9, 0), (30, 4), (3, 2), (20, 0))
    ]
    limits = [6, 1, 9, 3]
    num_tokens = 256 + word_tokenizer().num_pieces
    answers = generate(*random_model(), prompts, max_tokens=max(limits), num_tokens=num_tokens)
    references = []
    for answer, limit in zip(answers, limits, strict=True):
        stop = [] if answer.stop_token is None else [answer.stop_token]
        references.append([*answer.tokens.tolist(), *stop][:limit])
    return [
        Question(
            name=str(number),
            prompt="for people",
            references=("for people",),
            prompt_tokens=tuple(prompt.context.tolist()),
            target_prefix=tuple(prompt.target_prefix.tolist()),
            reference_tokens=tuple(reference),
        )
        for number, (prompt, reference) in enumerate(zip(prompts, references, strict=True))
    ]


def test_a_model_answers_prompts_of_tokens():
    questions = some_questions()
    wrong = (300, *questions[2].reference_tokens[1:])
    assert questions[2].reference_tokens[0] != 300
    too_long = questions[1]._replace(name="long", prompt_tokens=(300,) * 70)
    given = (*questions[:2], questions[2]._replace(reference_tokens=wrong), questions[3], too_long)
    result = GivenQuestions(given=given).measure(task_model())
    assert [answer.question.name for answer in result.answers] == ["0", "1", "2", "3"]
    assert [answer.metrics["exact_match"] for answer in result.answers] == [1, 1, 0, 1]
    assert [answer.metrics["token_accuracy"] == 1 for answer in result.answers] == [True, True, False, True]
    assert result.answers[1].question.groups == {"prompt_tokens": 30 + 1 + 4}
    assert result.answers[3].answer == word_tokenizer().decode(questions[3].reference_tokens)
    assert result.refused[0] == "record 3: broken"
    assert "question long: has 75 tokens" in result.refused[1]
    assert len(result.refused) == 2


def test_processes_divide_the_questions():
    four = some_questions()
    eight = (*four, *(question._replace(name=f"{question.name} again") for question in four))
    task = GivenQuestions(given=eight)
    texts = []

    def note(text):
        texts.append(text)
        return [text]

    for index in (0, 1):
        # The process does not receive the answers of the other process.
        with pytest.raises(KeyError):
            task.measure(task_model(share=Share(index, 2, note)))
    shared = task.measure(task_model(share=Share(0, 2, lambda text: texts)))
    assert [answer.metrics["exact_match"] for answer in shared.answers] == [1] * 8


@pytest.mark.parametrize(
    ("reference", "answer", "accuracy", "exact"),
    [
        ((300, 301, END), (300, 301, END), 1, 1),
        ((300, 301, END), (300, 301), 1, 0),
        ((300, 301, DONE), (300, 301, END), 1, 0),
        ((300, 301, END), (300, END), 0.5, 0),
        ((300, 301, END), (301, 300, END), 0, 0),
        ((300, 301), (300, 301), 1, 1),
        ((300,), (), 0, 0),
    ],
)
def test_tokens_are_scored_by_position(reference, answer, accuracy, exact):
    assert score_tokens(reference, answer) == {"token_accuracy": accuracy, "exact_match": exact}
