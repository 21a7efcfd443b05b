"""The base classes of all tasks: questions, answers and scores."""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np

from birdie_jax.errors import ConfigError
from birdie_jax.generation import STOP_TOKENS
from birdie_jax.generation.text_generation import TextAnswer
from birdie_jax.models.task_head import Head
from birdie_jax.objectives import Arm
from birdie_jax.storage import Bounds
from birdie_jax.tasks.question import Question, ScoredAnswer, TaskResult
from birdie_jax.tasks.task_model import Progress, TaskModel, no_progress
from birdie_jax.tasks.training_examples import GeneratedExamples, RecordedExamples
from birdie_jax.text import Tokenizer
from birdie_jax.vocabulary import special_token_name

AnswerTokens = Annotated[int, Bounds(at_least=0, at_most=2**20)]


@dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """Something that a model is measured on, and that it may be fine-tuned on.

    A new task is one file with a subclass: a frozen dataclass whose fields are its settings, with the types
    of config_types.py, under `@register_task`; and one line in `__init__.py`. Most tasks subclass
    `GenerationTask` or `ChoiceTask`.

    Attributes:
        name: the name under which configurations and `--task` find it.
        main_metric: the metric that represents the task if there is room for only one.
        in_place: whether the task reads texts in the form of an encoder's objective, and hides tokens in
            place or asks a head; it asks no prompts then.
    """

    name: ClassVar[str]
    main_metric: ClassVar[str]
    in_place: ClassVar[bool] = False

    @abc.abstractmethod
    def measure(self, model: TaskModel, progress: Progress = no_progress) -> TaskResult:
        """Ask the model all questions and score its answers; depends on task and model alone.

        Args:
            model: the model; all processes call this, and all get the whole result.
            progress: called with the number of questions done and of all.

        Raises:
            DataError: the task's data cannot be read; names file and record.
            ScoreError: a score of the model's head is not finite; names the sample.
        """

    @property
    def head(self) -> Head | None:
        """The fine-tuned head that answers the task; None: the model answers with tokens."""
        return None

    @property
    def inner_metrics(self) -> frozenset[str]:
        """The metrics of answers that others are derived from, and that are not reported."""
        return frozenset()

    @property
    def predictions_file(self) -> str:
        """The file of predictions of a task without known answers; empty: the task has scores."""
        return ""

    def predictions(self, answers: Sequence[ScoredAnswer]) -> bytes:
        """Return the contents of `predictions_file`.

        Args:
            answers: the answers to all questions, without metrics.
        """
        del answers
        return b""

    def check_length(self, arm_in_place: Arm | None, max_length: int | None) -> None:
        """Check that the task's inputs are not longer than the rows that a model has learned.

        Tasks with prompts skip questions that are too long, and need no check.

        Args:
            arm_in_place: the arm that hides tokens in place, if one is known.
            max_length: the largest number of tokens that the model has learned; None = no limit.

        Raises:
            ConfigError: it is longer; the message names the setting.
        """
        del arm_in_place, max_length

    def settings_within(self, tokenizer: Tokenizer, length: int) -> Mapping[str, Any]:
        """Return settings with which no prompt with its answer is longer than `length`; empty: none known.

        Args:
            tokenizer: the tokenizer of the model.
            length: the tokens of the rows that the model was trained on.
        """
        del tokenizer, length
        return {}

    def check_data(self, tokenizer: Tokenizer) -> None:
        """Read the task's data, to report bad data before a model is compiled, trained or evaluated.

        A task that reads a file overrides this, or is a `QuestionTask`.

        Args:
            tokenizer: the tokenizer of the model.

        Raises:
            ConfigError: the task needs a missing package, or a setting does not fit its data.
            DataError: the task's data cannot be read; names file and record.
        """
        del tokenizer

    def derived_metrics(self, means: Mapping[str, float]) -> Mapping[str, float]:
        """Return further metrics, which follow from means and are no means themselves, such as perplexity.

        Args:
            means: the weighted means of the metrics of answers, of all or of those of a group.
        """
        del means
        return {}

    def rescored(self, answers: Sequence[ScoredAnswer]) -> Sequence[ScoredAnswer]:
        """Return answers, in their order, with the scores that they have among themselves.

        They are the same, unless a score depends on the other answers, as a rank does. Then a group is
        scored as if it were the only question.

        Args:
            answers: answers that `measure` returned, any part of them, but at least one.
        """
        return answers

    def training_examples(self, tokenizer: Tokenizer) -> GeneratedExamples | RecordedExamples:
        """Return the examples for fine-tuning on the task.

        Raises:
            ConfigError: the task has no training examples.
            DataError: the task's data cannot be read; names file and record.
        """
        del tokenizer
        raise ConfigError(f"the task {self.name} is for evaluation alone: it has no training examples")


@dataclass(frozen=True, kw_only=True)
class QuestionTask(Task):
    """A task made of questions."""

    @abc.abstractmethod
    def questions(self, tokenizer: Tokenizer) -> tuple[Sequence[Question], Sequence[str]]:
        """Return the questions, with unique names, and a line for each skipped record.

        Raises:
            DataError: the task's data cannot be read, or there is no question; names file and record.
        """

    def check_data(self, tokenizer: Tokenizer) -> None:
        """Make the questions."""
        self.questions(tokenizer)


@dataclass(frozen=True, kw_only=True)
class GenerationTask(QuestionTask):
    """A task whose answers are written freely, by greedy choice.

    Attributes:
        max_tokens: the largest number of tokens of an answer; 0 = as many as any of the references can
            need, so that no right answer is cut.
    """

    max_tokens: AnswerTokens = 64

    @abc.abstractmethod
    def score(self, question: Question, answer: str) -> Mapping[str, float]:
        """Return the metrics of an answer, the same for every question."""

    def measure(self, model: TaskModel, progress: Progress = no_progress) -> TaskResult:
        """Let the model write an answer to every question."""
        questions, refused = self.questions(model.tokenizer)
        max_tokens = self.max_tokens or _max_reference_tokens(questions)
        asked, prompts, refused = model.prompts(questions, refused, max_tokens)
        answers = model.generate(prompts, max_tokens, progress)
        scored = [
            ScoredAnswer(question, answer.text, self.score(question, answer.text), details=_details(answer))
            for question, answer in zip(asked, answers, strict=True)
        ]
        return TaskResult(tuple(scored), tuple(refused))


def _max_reference_tokens(questions: Sequence[Question]) -> int:
    """Return the most tokens that can write a reference: a leading space, its bytes, and END."""
    references = (reference for question in questions for reference in question.references)
    return max((len(reference.encode()) for reference in references), default=0) + 2


def _details(answer: TextAnswer) -> Mapping[str, object]:
    return {"tokens": answer.tokens, "stopped_by": answer.stopped_by}


@dataclass(frozen=True, kw_only=True)
class ChoiceTask(QuestionTask):
    """A task whose answers are chosen: the one with the highest log-likelihood a token.

    The paper divides losses by the tokens of the choice (section C, Table 8); the sum's choice is reported
    too.

    Attributes:
        main_metric: accuracy by log-likelihood a token.
    """

    main_metric: ClassVar[str] = "accuracy"

    def measure(self, model: TaskModel, progress: Progress = no_progress) -> TaskResult:
        """Let the model choose an answer to every question."""
        questions, refused = self.questions(model.tokenizer)
        asked, prompts, refused = model.prompts(questions, refused, 0)
        scored = []
        likelihoods = model.choice_likelihoods(prompts, [question.choices for question in asked], progress)
        for question, choices in zip(asked, likelihoods, strict=True):
            per_token = [choice.log_likelihood / max(choice.tokens, 1) for choice in choices]
            summed = [choice.log_likelihood for choice in choices]
            label = question.choices.index(question.references[0])
            best = per_token.index(max(per_token))
            metrics = {
                "accuracy": float(best == label),
                "accuracy_of_sums": float(summed.index(max(summed)) == label),
            }
            details = {"log_likelihoods": summed, "tokens": [choice.tokens for choice in choices]}
            scored.append(ScoredAnswer(question, question.choices[best], metrics, details=details))
        return TaskResult(tuple(scored), tuple(refused))


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
        """Return the questions, all with reference tokens, and a line for each skipped one."""

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
                    model.tokenizer.decode(without_stop(answer)),
                    score_tokens(question.reference_tokens, answer),
                    details=_token_details(answer),
                )
                for question, answer in zip(asked, answers, strict=True)
            ),
            tuple(refused),
        )


_Tokens = TypeVar("_Tokens", Sequence[int], np.ndarray)


def without_stop(tokens: _Tokens) -> _Tokens:
    """Return tokens without the stop token that ends them, if one does."""
    return tokens[:-1] if len(tokens) and tokens[-1] in STOP_TOKENS else tokens


def _token_details(answer: Sequence[int]) -> Mapping[str, object]:
    stopped = len(without_stop(answer)) < len(answer)
    return {
        "tokens": len(answer),
        "stopped_by": special_token_name(answer[-1]) if stopped else "max_tokens",
    }


def score_tokens(reference: Sequence[int], answer: Sequence[int]) -> Mapping[str, float]:
    """Return the metrics of an answer, which may end with a stop token as the reference may."""
    wanted = without_stop(reference)
    right = sum(found == token for found, token in zip(answer, wanted, strict=False))
    return {
        "token_accuracy": right / len(wanted),
        "exact_match": float(tuple(answer) == tuple(reference)),
    }
