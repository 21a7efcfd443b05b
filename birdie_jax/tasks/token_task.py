"""Tasks whose prompts and answers are tokens that no text may stand for, such as random ones."""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from birdie_jax.generation import STOP_TOKENS
from birdie_jax.tasks.question import Question, ScoredAnswer, TaskResult
from birdie_jax.tasks.task import QuestionTask
from birdie_jax.tasks.task_model import Progress, TaskModel, no_progress
from birdie_jax.text import Tokenizer


@dataclass(frozen=True, kw_only=True)
class TokenTask(QuestionTask):
    """A task whose questions have `prompt_tokens` and `reference_tokens`, and answers at most as long.

    Metrics:
        token_accuracy: the share of the reference's tokens that the answer has in their places, without the
            token that ends it.
        exact_match: whether the answer is the reference, with the token that ends it.

    Attributes:
        main_metric: the share of tokens that are right.
    """

    main_metric: ClassVar[str] = "token_accuracy"

    @abc.abstractmethod
    def questions(self, tokenizer: Tokenizer) -> tuple[Sequence[Question], Sequence[str]]:
        """Return the questions, all with reference tokens, and a line for each that cannot be asked."""

    def measure(self, model: TaskModel, progress: Progress = no_progress) -> TaskResult:
        """Let the model write as many tokens as the reference has, by greedy choice."""
        questions, refused = self.questions(model.tokenizer)
        asked, prompts = [], []
        for question in questions:
            found, made, refused = model.prompts([question], refused, len(question.reference_tokens))
            asked += found
            prompts += made
        limits = [len(question.reference_tokens) for question in asked]
        answers = model.generate_tokens(prompts, limits, progress)
        return TaskResult(
            tuple(
                ScoredAnswer(
                    question,
                    model.tokenizer.decode(answer),
                    score_tokens(question.reference_tokens, answer),
                )
                for question, answer in zip(asked, answers, strict=True)
            ),
            tuple(refused),
        )


def score_tokens(reference: Sequence[int], answer: Sequence[int]) -> Mapping[str, float]:
    """Return the metrics of an answer, which may end with a stop token as the reference may."""
    wanted = reference[:-1] if reference[-1] in STOP_TOKENS else reference
    right = sum(found == token for found, token in zip(answer, wanted, strict=False))
    return {
        "token_accuracy": right / len(wanted),
        "exact_match": float(tuple(answer) == tuple(reference)),
    }
