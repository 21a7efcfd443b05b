"""Recall of a few items among noise: selective copying, and in-context recall with a query or without.

Without a query this is the selective copying task of Mamba (Gu and Dao 2023, section 3.1), with one it is
noisy in-context recall (Poli et al. 2024, "Mechanistic Design and Scaling of Hybrid Architectures").
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from jaxtyping import Int64

from birdie_jax import vocabulary
from birdie_jax.config_types import Seed
from birdie_jax.errors import ConfigError
from birdie_jax.objectives import Example
from birdie_jax.storage import Bounds
from birdie_jax.tasks.question import Question
from birdie_jax.tasks.registry import register_task
from birdie_jax.tasks.task import TokenTask
from birdie_jax.tasks.training_examples import GeneratedExamples
from birdie_jax.text import Tokenizer

Length = Annotated[int, Bounds(at_least=2, at_most=2**20)]
Items = Annotated[int, Bounds(at_least=1, at_most=2**18)]
Tokens = Annotated[int, Bounds(at_least=1, at_most=2**20)]
Sequences = Annotated[int, Bounds(at_least=1, at_most=10**6)]

NONE, FIRST, LAST = "none", "first", "last"


class NoisySequence(NamedTuple):
    """A sequence as numbers of the task's vocabulary.

    Attributes:
        sequence: int64 [sequence_length], the items in their places, and noise.
        keys: int64 [items], the keys in the order of the items; without a query there is none.
        values: int64 [items], the values in the order of the items.
        places: int64 [items], the place of each value in the sequence.
        asked: int64 [items], the numbers of the items in the order in which they are asked for.
    """

    sequence: Int64[np.ndarray, " length"]
    keys: Int64[np.ndarray, " keys"]
    values: Int64[np.ndarray, " items"]
    places: Int64[np.ndarray, " items"]
    asked: Int64[np.ndarray, " items"]


@register_task
@dataclass(frozen=True, kw_only=True)
class NoisyRecall(TokenTask):
    """Items among noise; the model writes their values.

    Noise, keys and values are of disjoint parts of a vocabulary, the first pieces of the tokenizer that
    represent text. Noise is drawn with replacement, keys and values without.

    - With query "none" an item is a value, and all values are written in their order.
    - With "first" and "last" an item is a key, followed by its value. With "first" one key is before
      the sequence, and its value is written. With "last" keys come after the context, as the beginning of
      the answer: a question has one key; in training all come in a random order, each with its
      value behind it.

    Behind the marker of prefix_lm and the key of "first", the sequence is the context. Keys after the
    context bear loss in training, which therefore does not go to zero. A sequence is a function of the
    other settings and its number; it gives one question. The group is "distance", the tokens from the first
    value that is asked for to the end of the context.

    Attributes:
        query: "none", "first" or "last".
        sequence_length: the tokens of items and noise.
        items: the number of items.
        noise: the number of different tokens of noise.
        keys: the number of different keys.
        values: the number of different values.
        num_sequences: the number of sequences.
        seed: the seed of the questions.
    """

    name: ClassVar[str] = "noisy_recall"

    query: Literal["none", "first", "last"] = "none"
    sequence_length: Length = 64
    items: Items = 4
    noise: Tokens = 64
    keys: Tokens = 32
    values: Tokens = 32
    num_sequences: Sequences = 128
    seed: Seed = 0

    def __post_init__(self):
        if self.items * self._item_length > self.sequence_length:
            raise ValueError(
                f"items: found {self.items}, of {self._item_length} tokens each; allowed: at most "
                f"{self.sequence_length // self._item_length} in sequence_length = {self.sequence_length}"
            )
        for field in ("keys", "values"):
            if getattr(self, field) < self.items:
                raise ValueError(
                    f"{field}: found {getattr(self, field)}; allowed: at least items = {self.items}"
                )

    @property
    def _item_length(self) -> int:
        return 1 if self.query == NONE else 2

    @property
    def _vocabulary(self) -> int:
        return self.noise + self.keys + self.values

    def draw_sequence(self, rng: np.random.Generator) -> NoisySequence:
        """Return a random sequence."""
        size = self._item_length
        # Items are disjoint: draw places without the room of their later tokens, then add it.
        rooms = self.sequence_length - self.items * (size - 1)
        starts = np.sort(rng.choice(rooms, self.items, replace=False)) + np.arange(self.items) * (size - 1)
        sequence = rng.integers(self.noise, size=self.sequence_length)
        values = self.noise + self.keys + rng.choice(self.values, self.items, replace=False)
        keys = np.empty(0, np.int64)
        asked = np.arange(self.items)
        if self.query != NONE:
            keys = self.noise + rng.choice(self.keys, self.items, replace=False)
            sequence[starts] = keys
            asked = rng.permutation(self.items)
        places = starts + size - 1
        sequence[places] = values
        return NoisySequence(sequence, keys, values, places, asked)

    def context(self, drawn: NoisySequence, tokens: np.ndarray) -> list[int]:
        """Return the tokens of a context."""
        query = tokens[drawn.keys[drawn.asked[:1]]].tolist() if self.query == FIRST else []
        return [vocabulary.PREFIX_LM, *query, *tokens[drawn.sequence].tolist()]

    def target(self, drawn: NoisySequence, tokens: np.ndarray) -> list[int]:
        """Return the tokens that are written after a context in training, without END."""
        values = drawn.values[drawn.asked]
        if self.query == FIRST:
            values = values[:1]
        elif self.query == LAST:
            values = np.stack([drawn.keys[drawn.asked], values], axis=1).reshape(-1)
        return tokens[values].tolist()

    def questions(self, tokenizer: Tokenizer) -> tuple[Sequence[Question], Sequence[str]]:
        """Return a question for each sequence.

        Raises:
            ConfigError: the tokenizer has fewer pieces than the vocabulary of the task.
        """
        tokens = self._tokens(tokenizer)
        questions = []
        for number in range(self.num_sequences):
            drawn = self.draw_sequence(np.random.default_rng([self.seed, number]))
            context, target = self.context(drawn, tokens), self.target(drawn, tokens)
            given = target[:1] if self.query == LAST else []
            answer = target[1:2] if self.query == LAST else [*target, vocabulary.END]
            questions.append(
                Question(
                    name=f"{number:06d}",
                    prompt=tokenizer.decode([*context, vocabulary.START, *given]),
                    references=(tokenizer.decode(answer),),
                    groups={"distance": self.sequence_length - int(drawn.places[drawn.asked[0]])},
                    prompt_tokens=tuple(context),
                    target_prefix=tuple(given),
                    reference_tokens=tuple(answer),
                )
            )
        return questions, ()

    def training_examples(self, tokenizer: Tokenizer) -> GeneratedExamples:
        """Return a generator of sequences, all of one length, plus the marker, the query and the answer.

        Raises:
            ConfigError: the tokenizer has fewer pieces than the vocabulary of the task.
        """
        return NoisyRecallExamples(self, self._tokens(tokenizer))

    def _tokens(self, tokenizer: Tokenizer) -> np.ndarray:
        tokens = tokenizer.ordinary_tokens()
        if len(tokens) < self._vocabulary:
            raise ConfigError(
                f"the task {self.name}: noise, keys and values: found {self._vocabulary} together; "
                f"allowed: at most {len(tokens)}, the pieces of text of {tokenizer.name}"
            )
        return tokens[: self._vocabulary]


class NoisyRecallExamples:
    """Random sequences to learn from."""

    def __init__(self, task: NoisyRecall, tokens: np.ndarray):
        """Write sequences of `task` with the ids `tokens` of its vocabulary."""
        self._task, self._tokens = task, tokens

    def draw(self, rng: np.random.Generator, max_positions: int) -> Example | None:
        """Return a sequence with its answer; None if they do not fit `max_positions`."""
        drawn = self._task.draw_sequence(rng)
        context = self._task.context(drawn, self._tokens)
        target = [*self._task.target(drawn, self._tokens), vocabulary.END]
        if len(context) + len(target) > max_positions:
            return None
        return Example(np.array(context, np.int32), np.array(target, np.int32))
