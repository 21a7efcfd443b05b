"""Multi-query associative recall (MQAR; Arora et al. 2023, "Zoology"): recall values by their keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

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

Vocabulary = Annotated[int, Bounds(at_least=8, at_most=2**24)]
SequenceLength = Annotated[int, Bounds(at_least=4, at_most=2**20)]
Pairs = Annotated[int, Bounds(at_least=1, at_most=2**18)]
PowerOfGaps = Annotated[float, Bounds(more_than=0, at_most=100)]
Sequences = Annotated[int, Bounds(at_least=1, at_most=10**6)]

# The filler is number 0 of the task's vocabulary.
_FILLER = 0


class RecallSequence(NamedTuple):
    """A sequence as numbers of the task's vocabulary.

    Attributes:
        pairs: int64 [2 * pairs], each key with its value behind it.
        queries: int64 [sequence_length - 2 * pairs], the keys again, each with its value behind it, and
            fillers between them.
        slots: int64 [pairs], for each key in the order of `pairs` where it is asked for again: at
            `queries[2 * slot]`.
    """

    pairs: Int64[np.ndarray, " pairs"]
    queries: Int64[np.ndarray, " queries"]
    slots: Int64[np.ndarray, " slots"]


@register_task
@dataclass(frozen=True, kw_only=True)
class AssociativeRecall(TokenTask):
    """Pairs of a key and a value, then every key again, to recall its value.

    As published: keys and values are from disjoint halves of a vocabulary, all keys of a sequence distinct
    and all its values; the pairs come first; each key is asked for once, in one of the
    (sequence_length - 2 pairs) / 2 slots of two positions behind them, and slot i (from 1) is drawn in
    proportion to i^(power_a - 1), without replacement. The rest is filled with one filler, as for the
    paper's Figure 2, or with random tokens.

    Here a model reads a context and writes a target, and each token of the target bears loss. This differs:

    - The pairs are the context, behind the marker of prefix_lm, and may be read in both directions. The
      slots are the target, so the model knows nothing of them while it reads the pairs.
    - The right value follows each key in the target, where the published sequence has a filler; a
      later query can see it. As all keys are distinct, this reveals no other answer.
    - In training, keys, fillers and END bear loss too. The order of keys is unpredictable, so the
      loss does not go to zero. The metrics count values alone, as published.
    - The vocabulary is the first pieces of the tokenizer that stand for text: the filler, keys, values.

    Each question is one query: its prompt is the context and the target up to the key, all right, and its
    answer is the one next token. Sequence i is a function of the other settings and i. The groups are
    "pairs" and "distance", the positions from the key's pair to its query.

    Attributes:
        vocab_size: the number of different tokens; half are keys (one of them the filler), half are values.
        sequence_length: the positions of pairs and slots; even, and at least four for each pair.
        key_value_pairs: the number of pairs.
        power_a: the power a of the law of gaps: the smaller, the sooner most queries come; 1 = uniform.
        random_fillers: whether fillers are random tokens of the vocabulary instead of one that is always
            the same.
        num_sequences: the number of sequences; each gives a question for each pair.
        seed: the seed of the questions.
    """

    name: ClassVar[str] = "associative_recall"

    vocab_size: Vocabulary = 8192
    sequence_length: SequenceLength = 64
    key_value_pairs: Pairs = 4
    power_a: PowerOfGaps = 0.01
    random_fillers: bool = False
    num_sequences: Sequences = 128
    seed: Seed = 0

    def __post_init__(self):
        if self.sequence_length % 2 or self.sequence_length < 4 * self.key_value_pairs:
            raise ValueError(
                f"sequence_length: found {self.sequence_length}; allowed: an even number of at least "
                f"4 key_value_pairs = {4 * self.key_value_pairs}"
            )
        if self.vocab_size <= self.sequence_length:
            raise ValueError(
                f"vocab_size: found {self.vocab_size}; allowed: more than sequence_length = "
                f"{self.sequence_length}"
            )

    def draw_sequence(self, rng: np.random.Generator) -> RecallSequence:
        """Return a random sequence."""
        count, half = self.key_value_pairs, self.vocab_size // 2
        keys = rng.choice(np.arange(1, half), count, replace=False)
        values = rng.choice(np.arange(half, self.vocab_size), count, replace=False)
        pairs = np.stack([keys, values], axis=1).reshape(-1)
        num_slots = (self.sequence_length - len(pairs)) // 2
        weights = np.arange(1, num_slots + 1, dtype=np.float64) ** (self.power_a - 1)
        slots = rng.choice(num_slots, count, replace=False, p=weights / weights.sum())
        queries = np.full(2 * num_slots, _FILLER, np.int64)
        if self.random_fillers:
            queries = rng.integers(self.vocab_size, size=2 * num_slots)
        queries[2 * slots] = keys
        queries[2 * slots + 1] = values
        return RecallSequence(pairs, queries, slots)

    def questions(self, tokenizer: Tokenizer) -> tuple[Sequence[Question], Sequence[str]]:
        """Return a question for each query.

        Raises:
            ConfigError: the tokenizer has fewer pieces than `vocab_size`.
        """
        tokens = self._tokens(tokenizer)
        questions = []
        for number in range(self.num_sequences):
            sequence = self.draw_sequence(np.random.default_rng([self.seed, number]))
            context = (vocabulary.PREFIX_LM, *tokens[sequence.pairs].tolist())
            target = tokens[sequence.queries].tolist()
            for pair, slot in enumerate(sequence.slots.tolist()):
                key, value = 2 * slot, target[2 * slot + 1]
                prefix = tuple(target[: key + 1])
                questions.append(
                    Question(
                        name=f"{number:06d}-{pair}",
                        prompt=tokenizer.decode([*context, vocabulary.START, *prefix]),
                        references=(tokenizer.decode([value]),),
                        groups={
                            "pairs": self.key_value_pairs,
                            "distance": len(sequence.pairs) + key - 2 * pair,
                        },
                        prompt_tokens=context,
                        target_prefix=prefix,
                        reference_tokens=(value,),
                    )
                )
        return questions, ()

    def training_examples(self, tokenizer: Tokenizer) -> GeneratedExamples:
        """Return a generator of sequences, all of `sequence_length` positions, and marker and END.

        Raises:
            ConfigError: the tokenizer has fewer pieces than `vocab_size`.
        """
        return RecallExamples(self, self._tokens(tokenizer))

    def _tokens(self, tokenizer: Tokenizer) -> np.ndarray:
        tokens = tokenizer.ordinary_tokens()
        if len(tokens) < self.vocab_size:
            raise ConfigError(
                f"the task {self.name}: vocab_size: found {self.vocab_size}; allowed: at most "
                f"{len(tokens)}, the pieces of text of {tokenizer.name}"
            )
        return tokens[: self.vocab_size]


class RecallExamples:
    """Random sequences to learn from."""

    def __init__(self, task: AssociativeRecall, tokens: np.ndarray):
        """Write sequences of `task` with the ids `tokens` of its vocabulary."""
        self._task, self._tokens = task, tokens

    def draw(self, rng: np.random.Generator, max_positions: int) -> Example | None:
        """Return a sequence with marker and END; None if they do not fit `max_positions`."""
        if self._task.sequence_length + 2 > max_positions:
            return None
        sequence = self._task.draw_sequence(rng)
        context = np.concatenate([[vocabulary.PREFIX_LM], self._tokens[sequence.pairs]])
        target = np.append(self._tokens[sequence.queries], vocabulary.END)
        return Example(context.astype(np.int32), target.astype(np.int32))
