"""Questions, answers and scores: the records of every task."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from birdie_jax.generation import Prompt, make_prompt
from birdie_jax.objectives import Objective
from birdie_jax.text import Tokenizer


class Question(NamedTuple):
    """Something to be answered from a context.

    Attributes:
        name: the identifier of the question, unique within its task.
        prompt: the text that the model reads, in both directions if it can.
        references: the acceptable answers, at least one; fine-tuning trains the first of them. None if
            they are unknown, for predictions.
        choices: the answers to choose from, one of them the first reference; empty where the answer is
            written freely.
        groups: numbers that break scores down, such as {"numbers": 4}; the length of the prompt in
            tokens is added to them by the name of `LENGTH_GROUP`.
        prompt_tokens: the context as token ids, for prompts that are not what a tokenizer makes of a text;
            `prompt` is for people then. Empty where the prompt is a text.
        target_prefix: the given beginning of the answer, as token ids, after prompt tokens.
        reference_tokens: the right answer as token ids, with the token that ends it where one has to; empty
            where it is a text.
        categories: names that break scores down, any number of each kind, such as
            {"construction": ("reflexive",)}. A kind without a name is known of the question, which is in
            none of its categories.
        special_tokens: the special tokens that an answer to prompt tokens may hold; None = all that any
            answer may.
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


# The group that every question has: the tokens of its prompt.
LENGTH_GROUP = "prompt_tokens"


class ScoredAnswer(NamedTuple):
    """A model's answer to a question, with its scores.

    Attributes:
        question: the question.
        answer: the text that the model wrote, or its most likely choice.
        metrics: the scores of the answer, by the names of the metrics; none of a prediction.
        weight: the weight of the answer in the mean of the scores: 1, or for a rate, for example, its
            number of bytes.
        details: further results, as plain JSON: why the answer ended, likelihoods of choices.
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
        refused: the questions and records that could not be asked, a line each with the name and the
            reason.
    """

    answers: tuple[ScoredAnswer, ...]
    refused: tuple[str, ...] = field(default=())


def prompt_of(question: Question, objective: Objective, tokenizer: Tokenizer) -> Prompt:
    """Return the prompt of a question.

    Args:
        question: the question.
        objective: the objective in whose format a text is asked; prompt tokens have their own.
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
