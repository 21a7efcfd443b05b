"""The training examples of tasks: generated without limit, or from records."""

import hashlib
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from birdie_jax import vocabulary
from birdie_jax.generation import make_prompt
from birdie_jax.objectives import Example, make_objective
from birdie_jax.tasks.question import Question
from birdie_jax.text import Tokenizer

# The objective that formats the prompts of fine-tuned models: the context is marker and text.
PROMPT_OBJECTIVE = "prefix_lm"


@runtime_checkable
class GeneratedExamples(Protocol):
    """An unlimited source of random examples."""

    def draw(self, rng: np.random.Generator, max_positions: int) -> Example | None:
        """Return an example of at most `max_positions` positions; None if no example is that short.

        The example depends only on the random generator and `max_positions`.
        """
        ...


@runtime_checkable
class RecordedExamples(Protocol):
    """A fixed number of examples, in the order of their records.

    Attributes:
        lengths: the number of positions of each example, int64 [examples].
        sha256: a hash of all examples; a run uses it to detect changed examples.
    """

    @property
    def lengths(self) -> np.ndarray: ...  # noqa: D102

    @property
    def sha256(self) -> str: ...  # noqa: D102

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...


@runtime_checkable
class ExamplesOfText(Protocol):
    """Generated examples that are made from a text.

    Attributes:
        text_sha256: a hash of the text; empty = none. A run uses it to detect a changed text.
    """

    @property
    def text_sha256(self) -> str: ...  # noqa: D102


@runtime_checkable
class PartialExamples(Protocol):
    """Examples that also list the skipped records of their file.

    Attributes:
        refused: a message for each skipped record, with its name and the reason.
    """

    @property
    def refused(self) -> Sequence[str]: ...  # noqa: D102


def training_example(prompt: str, answer: str, tokenizer: Tokenizer) -> Example:
    """Return the example that trains a model to answer `prompt` with `answer` and END.

    For the same prompt in the format of prefix_lm, `generate` prefills the same context, so evaluation
    matches training.

    Raises:
        PromptError: the prompt is empty or not Unicode text.
        ValueError: the answer is not Unicode text.
    """
    context = make_prompt(prompt, make_objective(PROMPT_OBJECTIVE), tokenizer).context
    target = np.append(tokenizer.encode(answer), np.int32(vocabulary.END)).astype(np.int32)
    return Example(context, target)


def example_lengths(examples: Sequence[Example]) -> np.ndarray:
    """Return the number of positions of each example: int64 [examples]."""
    return np.array([len(example.context) + len(example.target) for example in examples], np.int64)


class QuestionExamples:
    """The training examples of questions, in order; a `RecordedExamples`.

    Attributes:
        lengths: the number of positions of each example, int64 [examples].
        sha256: the hash of the tokens of all examples.
        refused: a message for each skipped record.
    """

    def __init__(self, questions: Sequence[Question], refused: Sequence[str], tokenizer: Tokenizer):
        """Tokenize the questions.

        Args:
            questions: at least one question. Each prompt and first reference must be Unicode text.
            refused: a message for each skipped record.
            tokenizer: the tokenizer of the model.

        Raises:
            PromptError: a prompt is empty.
        """
        self.refused = tuple(refused)
        self._examples = [
            training_example(question.prompt, question.references[0], tokenizer) for question in questions
        ]
        self.lengths: Int[np.ndarray, " examples"] = example_lengths(self._examples)
        digest = hashlib.sha256()
        for example in self._examples:
            for tokens in (example.context, example.target):
                # Hash the length too, to separate context and target.
                digest.update(len(tokens).to_bytes(8, "little") + tokens.astype("<i4").tobytes())
        self.sha256: str = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> Example:
        return self._examples[index]
