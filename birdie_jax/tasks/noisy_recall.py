"""Recall of a few items among noise: selective copying, and noisy in-context recall.

Without a query, this is the selective copying task of Mamba (Gu and Dao 2023, section 3.1). With a
query, it is noisy in-context recall (Poli et al. 2024, "Mechanistic Design and Scaling of Hybrid
Architectures").
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
        sequence: int64 [sequence_length], the items and the noise.
        keys: int64 [items], the keys in the order of the items; int64 [0] without a query.
        values: int64 [items], the values in the order of the items.
        places: int64 [items], the position of each value in the sequence.
        asked: int64 [items], the numbers of the items in the order of the queries.
    """

    sequence: Int64[np.ndarray, " length"]
    keys: Int64[np.ndarray, " keys"]
    values: Int64[np.ndarray, " items"]
    places: Int64[np.ndarray, " items"]
    asked: Int64[np.ndarray, " items"]


@register_task
@dataclass(frozen=True, kw_only=True)
class NoisyRecall(TokenTask):
    """Recall the values of items among noise.

    Noise, keys and values are from disjoint parts of the vocabulary, which is the first text pieces of the
    tokenizer. Noise is drawn with replacement, keys and values without. The answer depends on `query`:

    - "none": an item is a value. The answer is all values in order.
    - "first": an item is a key and its value. A key precedes the sequence. The answer is its value.
    - "last": an item is a key and its value. A key follows the context, as the beginning of the target. The
      answer is its value. In training, all keys follow in random order, each with its value.

    The context is the marker of prefix_lm, the key for "first", and the sequence. In training, keys after
    the context also have a loss, so the loss does not reach zero. Each sequence is a question. It depends
    only on its number and the other settings.

    Groups:
        distance: the number of tokens from the first requested value to the end of the context.

    Attributes:
        query: the place of the query: "none", "first" or "last".
        sequence_length: the number of tokens of items and noise.
        items: the number of items.
        noise: the number of different noise tokens.
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
        # Items do not overlap: draw positions as if items had one token, then shift them.
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
        """Return the target tokens of training, without END."""
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
        """Return a generator of sequences of equal length, with marker, query and answer.

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
    """Random training sequences."""

    def __init__(self, task: NoisyRecall, tokens: np.ndarray):
        """Store the task and the token ids of its vocabulary."""
        self._task, self._tokens = task, tokens

    def draw(self, rng: np.random.Generator, max_positions: int) -> Example | None:
        """Return a sequence with its answer; None if it does not fit `max_positions`."""
        drawn = self._task.draw_sequence(rng)
        context = self._task.context(drawn, self._tokens)
        target = [*self._task.target(drawn, self._tokens), vocabulary.END]
        if len(context) + len(target) > max_positions:
            return None
        return Example(np.array(context, np.int32), np.array(target, np.int32))
