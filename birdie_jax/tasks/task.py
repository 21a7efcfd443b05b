"""The base classes of tasks."""

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
from birdie_jax.tasks.task_model import Progress, TaskModel, longest_choices, no_progress
from birdie_jax.tasks.training_examples import GeneratedExamples, RecordedExamples
from birdie_jax.text import Tokenizer
from birdie_jax.vocabulary import special_token_name

AnswerTokens = Annotated[int, Bounds(at_least=0, at_most=2**20)]


@dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """The base class of tasks to measure or fine-tune a model on.

    To add a task, write a file with a subclass: a frozen dataclass with the decorator `@register_task`. Its
    fields are the settings of the task, with types of config_types.py. Then import the file in
    `__init__.py`. Most tasks subclass `GenerationTask` or `ChoiceTask`.

    Attributes:
        name: the name of the task in configurations and in `--task`.
        main_metric: the metric to show if there is room for one.
        in_place: whether the task has inputs for an encoder instead of prompts: texts with hidden tokens,
            or samples for a head.
    """

    name: ClassVar[str]
    main_metric: ClassVar[str]
    in_place: ClassVar[bool] = False

    @abc.abstractmethod
    def measure(self, model: TaskModel, progress: Progress = no_progress) -> TaskResult:
        """Measure a model. The result depends only on task and model.

        All processes call this method, and all receive the whole result.

        Args:
            model: the model.
            progress: called with the number of finished questions and the total.

        Raises:
            DataError: the task's data cannot be read. The message names file and record.
            ScoreError: a score of the model's head is not finite, or the choices of a question have no
                most likely one. The message names the sample or the question.
        """

    @property
    def head(self) -> Head | None:
        """The fine-tuned head that the task needs; None = the model answers with tokens."""
        return None

    @property
    def inner_metrics(self) -> frozenset[str]:
        """The metrics that are used only to derive other metrics; reports omit them."""
        return frozenset()

    @property
    def predictions_file(self) -> str:
        """The predictions file of a task without known answers; empty = the task has scores."""
        return ""

    def predictions(self, answers: Sequence[ScoredAnswer]) -> bytes:
        """Return the contents of `predictions_file`.

        Args:
            answers: the answers to all questions, without metrics.
        """
        del answers
        return b""

    def check_length(self, arm_in_place: Arm | None, max_length: int | None) -> None:
        """Check that the task's inputs are not longer than the rows that the model was trained on.

        Tasks with prompts need no check, because they skip questions that are too long.

        Args:
            arm_in_place: the arm that hides tokens; None = unknown.
            max_length: the longest rows in tokens that the model was trained on; None = no limit.

        Raises:
            ConfigError: an input is too long. The message names the setting.
        """
        del arm_in_place, max_length

    def settings_within(self, tokenizer: Tokenizer, length: int) -> Mapping[str, Any]:
        """Return settings that limit prompt plus answer to `length` tokens; empty = no such settings known.

        Args:
            tokenizer: the tokenizer of the model.
            length: the number of tokens of the rows that the model was trained on.
        """
        del tokenizer, length
        return {}

    def check_data(self, tokenizer: Tokenizer) -> None:
        """Read the task's data, to report bad data before a model is compiled, trained or evaluated.

        Tasks that read a file override this method or subclass `QuestionTask`.

        Args:
            tokenizer: the tokenizer of the model.

        Raises:
            ConfigError: a required package is missing, or a setting does not fit the data.
            DataError: the task's data cannot be read. The message names file and record.
        """
        del tokenizer

    def derived_metrics(self, means: Mapping[str, float]) -> Mapping[str, float]:
        """Return metrics that are functions of mean metrics, such as perplexity.

        Args:
            means: the weighted means of the metrics of all answers, or of the answers of a group.
        """
        del means
        return {}

    def unit_of(self, answer: ScoredAnswer) -> str:
        """Return the name of the independent unit that an answer is a part of; by default, its question.

        The answers of a unit count as one answer with their weighted mean scores: intervals resample
        units, and differences between models pair them. Override it if several answers are parts of one
        document.
        """
        return answer.question.name

    def rescored(self, answers: Sequence[ScoredAnswer]) -> Sequence[ScoredAnswer]:
        """Return answers, in order, with the scores that they have among themselves.

        The default returns the answers unchanged. Override it if a score depends on other answers, as a
        rank does. Then groups are scored without the other answers.

        Args:
            answers: the answers of a non-empty subset of the units; see `unit_of`.
        """
        return answers

    def training_examples(self, tokenizer: Tokenizer) -> GeneratedExamples | RecordedExamples:
        """Return the training examples of the task.

        Raises:
            ConfigError: the task has no training examples.
            DataError: the task's data cannot be read. The message names file and record.
        """
        del tokenizer
        raise ConfigError(f"the task {self.name} is for evaluation alone: it has no training examples")


@dataclass(frozen=True, kw_only=True)
class QuestionTask(Task):
    """The base class of tasks that consist of questions."""

    @abc.abstractmethod
    def questions(self, tokenizer: Tokenizer) -> tuple[Sequence[Question], Sequence[str]]:
        """Return the questions, with unique names, and a message for each skipped record.

        Raises:
            DataError: the task's data cannot be read, or there is no question. The message names file and
                record.
        """

    def check_data(self, tokenizer: Tokenizer) -> None:
        """Read the questions, to report bad data."""
        self.questions(tokenizer)


@dataclass(frozen=True, kw_only=True)
class GenerationTask(QuestionTask):
    """A task with answers that the model generates by greedy decoding.

    Attributes:
        max_tokens: the largest number of tokens of an answer; 0 = enough for every reference.
    """

    max_tokens: AnswerTokens = 64

    @abc.abstractmethod
    def score(self, question: Question, answer: str) -> Mapping[str, float]:
        """Return the scores of an answer by metric. All questions have the same metrics."""

    def measure(self, model: TaskModel, progress: Progress = no_progress) -> TaskResult:
        """Generate an answer to every question."""
        questions, refused = self.questions(model.tokenizer)
        max_tokens = self.max_tokens or _max_reference_tokens(questions)
        questions, prompts, refused = model.prompts(questions, refused, max_tokens)
        answers = model.generate(prompts, max_tokens, progress)
        scored = [
            ScoredAnswer(question, answer.text, self.score(question, answer.text), details=_details(answer))
            for question, answer in zip(questions, answers, strict=True)
        ]
        return TaskResult(tuple(scored), tuple(refused))


def _max_reference_tokens(questions: Sequence[Question]) -> int:
    """Return an upper bound of a reference's tokens: a leading space, its bytes, and END."""
    references = (reference for question in questions for reference in question.references)
    return max((len(reference.encode()) for reference in references), default=0) + 2


def _details(answer: TextAnswer) -> Mapping[str, object]:
    return {"tokens": answer.tokens, "stopped_by": answer.stopped_by}


@dataclass(frozen=True, kw_only=True)
class ChoiceTask(QuestionTask):
    """A task with multiple choice: the answer is the choice with the highest log-likelihood per token.

    The Birdie paper divides losses by the number of tokens of the choice (appendix C, Table 8).

    Metrics:
        accuracy: whether the choice with the highest log-likelihood per token is right.
        accuracy_of_sums: whether the choice with the highest total log-likelihood is right.

    Attributes:
        main_metric: accuracy.
    """

    main_metric: ClassVar[str] = "accuracy"

    def measure(self, model: TaskModel, progress: Progress = no_progress) -> TaskResult:
        """Choose an answer to every question."""
        questions, refused = self.questions(model.tokenizer)
        limits = longest_choices(questions, model.tokenizer)
        questions, prompts, refused = model.prompts(questions, refused, limits)
        scored = []
        texts = [question.choices for question in questions]
        likelihoods = model.choice_likelihoods(prompts, texts, progress)
        for question, choices in zip(questions, likelihoods, strict=True):
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
    """A task with questions that have `prompt_tokens` and `reference_tokens`.

    The model generates at most as many tokens as the reference has.

    Metrics:
        token_accuracy: the share of the reference's tokens that are correct at their position, without the
            token that ends the reference.
        exact_match: whether the answer equals the reference, including the token that ends it.

    Attributes:
        main_metric: token_accuracy.
    """

    main_metric: ClassVar[str] = "token_accuracy"

    @abc.abstractmethod
    def questions(self, tokenizer: Tokenizer) -> tuple[Sequence[Question], Sequence[str]]:
        """Return the questions, all with reference tokens, and a message for each skipped question."""

    def measure(self, model: TaskModel, progress: Progress = no_progress) -> TaskResult:
        """Generate as many tokens as each reference has, by greedy decoding."""
        questions, refused = self.questions(model.tokenizer)
        limits = [len(question.reference_tokens) for question in questions]
        kept, prompts, refused = model.prompts(questions, refused, limits)
        limits = [len(question.reference_tokens) for question in kept]
        answers = model.generate_tokens(prompts, limits, progress)
        return TaskResult(
            tuple(
                ScoredAnswer(
                    question,
                    model.tokenizer.decode(without_stop(answer)),
                    score_tokens(question.reference_tokens, answer),
                    details=_token_details(answer),
                )
                for question, answer in zip(kept, answers, strict=True)
            ),
            tuple(refused),
        )


_Tokens = TypeVar("_Tokens", Sequence[int], np.ndarray)


def without_stop(tokens: _Tokens) -> _Tokens:
    """Remove a stop token at the end of `tokens`."""
    return tokens[:-1] if len(tokens) and tokens[-1] in STOP_TOKENS else tokens


def _token_details(answer: Sequence[int]) -> Mapping[str, object]:
    stopped = len(without_stop(answer)) < len(answer)
    return {
        "tokens": len(answer),
        "stopped_by": special_token_name(answer[-1]) if stopped else "max_tokens",
    }


def score_tokens(reference: Sequence[int], answer: Sequence[int]) -> Mapping[str, float]:
    """Return the metrics of an answer. Answer and reference may end with a stop token."""
    wanted = without_stop(reference)
    right = sum(found == token for found, token in zip(answer, wanted, strict=False))
    return {
        "token_accuracy": right / len(wanted),
        "exact_match": float(tuple(answer) == tuple(reference)),
    }
