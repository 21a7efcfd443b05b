"""What questions teach: each prompt with its first acceptable answer, one example a question."""

import hashlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from birdie_jax.objectives import Example
from birdie_jax.tasks.question import Question
from birdie_jax.tasks.training_examples import example_lengths, training_example
from birdie_jax.text import Tokenizer


class QuestionExamples:
    """The training examples of questions, in their order; a `RecordedExamples`.

    Attributes:
        lengths: the positions that each example covers, int64 [examples].
        sha256: the hash of all examples' tokens.
        refused: a line for each record that was passed over.
    """

    def __init__(self, questions: Sequence[Question], refused: Sequence[str], tokenizer: Tokenizer):
        """Tokenize the questions.

        Args:
            questions: at least one question; each prompt and first reference is Unicode text.
            refused: a line for each record that was passed over.
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
                # With its length, so that no token can change sides.
                digest.update(len(tokens).to_bytes(8, "little") + tokens.astype("<i4").tobytes())
        self.sha256: str = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> Example:
        return self._examples[index]
