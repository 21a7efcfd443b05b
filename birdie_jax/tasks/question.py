"""Questions, answers and scores of tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from birdie_jax.generation import Prompt, make_prompt
from birdie_jax.objectives import Objective
from birdie_jax.text import Tokenizer


class Question(NamedTuple):
    """A question to a model.

    Attributes:
        name: the identifier of the question, unique in its task.
        prompt: the text that the model reads, in both directions if it can.
        references: the acceptable answers, at least one; fine-tuning uses the first. Empty = unknown, for
            predictions.
        choices: the answers to choose from, including the first reference; empty = the model generates the
            answer.
        groups: numbers that break scores down, such as {"numbers": 4}. The evaluation adds the length of
            the prompt in tokens as `LENGTH_GROUP`.
        prompt_tokens: the context as token ids; empty = the context is `prompt`. With token ids,
            `prompt` is for display.
        target_prefix: the given beginning of the answer as token ids, if `prompt_tokens` is not empty.
        reference_tokens: the right answer as token ids, with the token that ends it if the answer must end;
            empty = the answer is a text.
        categories: names that break scores down, any number for each kind, such as
            {"construction": ("reflexive",)}. A kind with no names means that the question belongs to no
            category of this kind; a missing kind means unknown.
        special_tokens: the special tokens that an answer to `prompt_tokens` may contain; None = all special
            tokens of answers.
    """

    name: str
    prompt: str
    references: tuple[str, ...]
    choices: tuple[str, ...] = ()
    groups: Mapping[str, int] = {}
    prompt_tokens: tuple[int, ...] = ()
    target_prefix: tuple[int, ...] = ()
    reference_tokens: tuple[int, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = {}
    special_tokens: tuple[int, ...] | None = None


# The group of all questions: the number of tokens of the prompt.
LENGTH_GROUP = "prompt_tokens"


class ScoredAnswer(NamedTuple):
    """A model's answer to a question, with its scores.

    Attributes:
        question: the question.
        answer: the generated text, or the most likely choice.
        metrics: the scores of the answer by metric; empty for a prediction.
        weight: the weight of the answer in mean scores. It is 1, except for rates, where it is, for
            example, a number of bytes.
        details: more results as plain JSON, such as the reason that the answer ended, or likelihoods.
    """

    question: Question
    answer: str
    metrics: Mapping[str, float]
    weight: float = 1.0
    details: Mapping[str, Any] = {}


@dataclass(frozen=True)
class TaskResult:
    """The scored answers of a model on a task.

    Attributes:
        answers: the scored answers, in the order of the questions.
        refused: a message for each skipped question or record, with its name and the reason.
    """

    answers: tuple[ScoredAnswer, ...]
    refused: tuple[str, ...] = field(default=())


def prompt_of(question: Question, objective: Objective, tokenizer: Tokenizer) -> Prompt:
    """Return the prompt of a question.

    Args:
        question: the question.
        objective: the objective that formats a text; prompt tokens already have a format.
        tokenizer: the model's tokenizer.

    Raises:
        PromptError: the text is empty, or does not have the format of `objective`.
    """
    if not question.prompt_tokens:
        return make_prompt(question.prompt, objective, tokenizer)
    context, target_prefix = question.prompt_tokens, question.target_prefix
    return Prompt(
        np.array(context, np.int32),
        np.array(target_prefix, np.int32),
        special_tokens=question.special_tokens,
    )
