"""The base of tasks that ask what a training objective teaches, by the length of the text."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from birdie_jax.config_types import RequiredName, Seed, ShareOfBoth, Text
from birdie_jax.objectives import Example, Objective, UnsuitableText
from birdie_jax.storage import Bounds
from birdie_jax.tasks.question import Question
from birdie_jax.tasks.token_passages import Passages, TextSource
from birdie_jax.tasks.token_task import TokenTask
from birdie_jax.tasks.training_examples import GeneratedExamples
from birdie_jax.text import DataError, Tokenizer

PassageLength = Annotated[int, Bounds(at_least=2, at_most=2**20)]
QuestionsPerLength = Annotated[int, Bounds(at_least=1, at_most=10**6)]

# A passage of few different tokens has no unique delimiters; then another one is drawn.
_ATTEMPTS = 64


@dataclass(frozen=True, kw_only=True)
class ObjectiveByLength(TokenTask):
    """Prompts in the format of a training objective, markers included, made of passages of given lengths.

    So a model that was trained on the objective is measured as it is, without fine-tuning. The prompt is
    the objective's context and the reference is its target. Question i of a length is a function of the
    other settings, the tokenizer and i. The group is "length".

    Attributes:
        lengths: the numbers of tokens of the passages.
        questions_per_length: the number of questions of each length.
        source: where passages are read: "stdlib", a file, a folder, a glob, or such a URL; empty = tokens
            drawn uniformly from the tokenizer's pieces.
        text_field: the field of .jsonl and .parquet records that holds the text.
        validation_fraction: the share of the source's documents that is asked about; the others are for
            training. The documents of a smaller share are among those of a larger one.
        seed: the seed of the questions.
    """

    lengths: tuple[PassageLength, ...] = (32, 64, 128, 256, 512)
    questions_per_length: QuestionsPerLength = 64
    source: Text = ""
    text_field: RequiredName = "text"
    validation_fraction: ShareOfBoth = 0.01
    seed: Seed = 0

    def __post_init__(self):
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)):
            raise ValueError(
                f"lengths: found {list(self.lengths)}; allowed: one length or more, increasing"
            )
        for length in self.lengths:
            self.objective(length, length)

    @abc.abstractmethod
    def objective(self, min_length: int, max_length: int) -> Objective:
        """Return the objective for passages of `min_length` to `max_length` tokens.

        Raises:
            ValueError: it needs longer passages, or a setting is not allowed.
        """

    def questions(self, tokenizer: Tokenizer) -> tuple[Sequence[Question], Sequence[str]]:
        """Return the questions, ordered by length.

        Raises:
            DataError: the source cannot be read, or has no passages of such lengths.
        """
        passages = Passages(tokenizer, self._text, "validation")
        questions = []
        for length in self.lengths:
            objective = self.objective(length, length)
            for number in range(self.questions_per_length):
                rng = np.random.default_rng([self.seed, length, number])
                example = _build(objective, passages, length, rng)
                questions.append(
                    Question(
                        name=f"{length}-{number:06d}",
                        prompt=tokenizer.decode(example.context),
                        references=(tokenizer.decode(example.target),),
                        groups={"length": length},
                        prompt_tokens=tuple(example.context.tolist()),
                        reference_tokens=tuple(example.target.tolist()),
                    )
                )
        return questions, ()

    def training_examples(self, tokenizer: Tokenizer) -> GeneratedExamples:
        """Return a generator of examples of passages from the shortest to the longest of `lengths`.

        Raises:
            DataError: the source cannot be read.
        """
        passages = Passages(tokenizer, self._text, "train")
        return ObjectiveExamples(self.objective(self.lengths[0], self.lengths[-1]), passages)

    @property
    def _text(self) -> TextSource | None:
        if not self.source:
            return None
        return TextSource(self.source, self.text_field, self.validation_fraction)


class ObjectiveExamples:
    """Examples of an objective, made of passages whose lengths are uniform over what fits."""

    def __init__(self, objective: Objective, passages: Passages):
        """Draw lengths within those of `objective`."""
        self._objective, self._passages = objective, passages

    def draw(self, rng: np.random.Generator, max_positions: int) -> Example | None:
        """Return an example that covers at most `max_positions`; None where the shortest does not fit."""
        objective = self._objective
        longest = objective.max_length
        assert longest is not None
        try:
            length = objective.draw_length(longest, rng, max_positions)
        except UnsuitableText:
            return None
        return _build(objective, self._passages, length, rng)


def _build(objective: Objective, passages: Passages, length: int, rng: np.random.Generator) -> Example:
    for _ in range(_ATTEMPTS):
        try:
            return objective.build(passages.draw(rng, length), rng)
        except UnsuitableText as error:
            problem = error
    raise DataError(f"{objective.name}: none of {_ATTEMPTS} passages of {length} tokens will do: {problem}")
