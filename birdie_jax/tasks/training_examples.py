"""The training examples of a task: generated without end, or made of records."""

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

# The objective whose format a fine-tuned model's prompts have: marker and text as the context.
PROMPT_OBJECTIVE = "prefix_lm"


@runtime_checkable
class GeneratedExamples(Protocol):
    """Examples that a random generator makes, without limit."""

    def draw(self, rng: np.random.Generator, max_positions: int) -> Example | None:
        """Return an example that covers at most `max_positions`; None if none is that short.

        The example is a function of the generator and `max_positions` alone.
        """
        ...


@runtime_checkable
class RecordedExamples(Protocol):
    """A fixed number of examples, in the order of their records.

    Attributes:
        lengths: the positions that each example covers, int64 [examples].
        sha256: a hash of all examples, which a run uses to recognise them.
    """

    @property
    def lengths(self) -> np.ndarray: ...  # noqa: D102

    @property
    def sha256(self) -> str: ...  # noqa: D102

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...


@runtime_checkable
class PartialExamples(Protocol):
    """Recorded examples that list the skipped records of their file.

    Attributes:
        refused: a line for each skipped record, with its name and the reason.
    """

    @property
    def refused(self) -> Sequence[str]: ...  # noqa: D102


def training_example(prompt: str, answer: str, tokenizer: Tokenizer) -> Example:
    """Return the example that trains to answer `prompt` with `answer` and to end there.

    The context is what `generate` prefills for the same text in the format of prefix_lm, so evaluation has
    the form of training.

    Raises:
        PromptError: the prompt is empty or no Unicode text.
        ValueError: the answer is no Unicode text.
    """
    context = make_prompt(prompt, make_objective(PROMPT_OBJECTIVE), tokenizer).context
    target = np.append(tokenizer.encode(answer), np.int32(vocabulary.END)).astype(np.int32)
    return Example(context, target)


def example_lengths(examples: Sequence[Example]) -> np.ndarray:
    """Return the positions that each example covers: int64 [examples]."""
    return np.array([len(example.context) + len(example.target) for example in examples], np.int64)


class QuestionExamples:
    """The training examples of questions, in their order; a `RecordedExamples`.

    Attributes:
        lengths: the positions that each example covers, int64 [examples].
        sha256: the hash of all examples' tokens.
        refused: a line for each skipped record.
    """

    def __init__(self, questions: Sequence[Question], refused: Sequence[str], tokenizer: Tokenizer):
        """Tokenize the questions.

        Args:
            questions: at least one question; each prompt and first reference is Unicode text.
            refused: a line for each skipped record.
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
                # With its length, so the hash separates context and target.
                digest.update(len(tokens).to_bytes(8, "little") + tokens.astype("<i4").tobytes())
        self.sha256: str = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> Example:
        return self._examples[index]
