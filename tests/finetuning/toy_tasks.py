"""Tasks of words: one generates endless examples, the other has a fixed number of them."""

import hashlib
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from birdie_jax.objectives import Example
from birdie_jax.storage import Bounds
from birdie_jax.tasks import Task, TaskResult, example_lengths, register_task, training_example

LETTERS = "abcdefghijklmno"
Count = Annotated[int, Bounds(at_least=0, at_most=10**6)]


def word(random: np.random.Generator, letters: int) -> str:
    return "".join(random.choice(list(LETTERS), letters))


class GeneratedWords:
    """Examples that repeat a word; words are longer if there is more room."""

    def __init__(self, tokenizer, max_letters: int):
        self._tokenizer, self._max_letters = tokenizer, max_letters

    def draw(self, random, max_positions):
        text = word(random, int(random.integers(4, self._max_letters)))
        example = training_example(text, text, self._tokenizer)
        return example if len(example.context) + len(example.target) <= max_positions else None


class RecordedWords:
    """Examples that reverse words."""

    def __init__(self, tokenizer, count: int, max_letters: int):
        random = np.random.default_rng(7)
        texts = [word(random, int(random.integers(4, max_letters))) for _ in range(count)]
        self._examples = [training_example(text, text[::-1], tokenizer) for text in texts]
        self.lengths = example_lengths(self._examples)
        self.sha256 = hashlib.sha256("\n".join(texts).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> Example:
        return self._examples[index]


@dataclass(frozen=True, kw_only=True)
class Words(Task):
    """Words of random letters."""

    name: ClassVar[str] = "toy_words"
    main_metric: ClassVar[str] = "accuracy"

    max_letters: Count = 24

    def measure(self, model, progress=None):
        """Measure nothing."""
        del model, progress
        return TaskResult(())

    def training_examples(self, tokenizer):
        """Return an endless source of words."""
        return GeneratedWords(tokenizer, self.max_letters)


@dataclass(frozen=True, kw_only=True)
class BackwardWords(Words):
    """A fixed number of words."""

    name: ClassVar[str] = "toy_backward_words"
    count: Count = 40

    def training_examples(self, tokenizer):
        """Return all words."""
        return RecordedWords(tokenizer, self.count, self.max_letters)


register_task(Words)
register_task(BackwardWords)
