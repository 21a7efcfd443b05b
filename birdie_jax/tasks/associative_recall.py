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
from birdie_jax.tasks.question import Question, ScoredAnswer
from birdie_jax.tasks.registry import register_task
from birdie_jax.tasks.task import TokenTask
from birdie_jax.tasks.training_examples import GeneratedExamples
from birdie_jax.text import Tokenizer

Vocabulary = Annotated[int, Bounds(at_least=8, at_most=2**24)]
SequenceLength = Annotated[int, Bounds(at_least=4, at_most=2**20)]
Pairs = Annotated[int, Bounds(at_least=1, at_most=2**18)]
PowerOfGaps = Annotated[float, Bounds(more_than=0, at_most=100)]
Sequences = Annotated[int, Bounds(at_least=1, at_most=10**6)]

# The filler's number in the task's vocabulary.
_FILLER = 0


class RecallSequence(NamedTuple):
    """A sequence as numbers of the task's vocabulary.

    Attributes:
        pairs: int64 [2 * pairs], keys and values in turn.
        queries: int64 [sequence_length - 2 * pairs], each key followed by its value, and fillers between
            them.
        slots: int64 [pairs], the slot of each key of `pairs`; the key is `queries[2 * slot]`.
    """

    pairs: Int64[np.ndarray, " pairs"]
    queries: Int64[np.ndarray, " queries"]
    slots: Int64[np.ndarray, " slots"]


@register_task
@dataclass(frozen=True, kw_only=True)
class AssociativeRecall(TokenTask):
    """Recall the value of each key after a list of key-value pairs.

    As in the paper:

    - Keys and values are from disjoint halves of the vocabulary. The keys of a sequence are distinct, and
      so are its values.
    - A sequence begins with the pairs. (sequence_length - 2 pairs) / 2 slots of two positions follow.
    - Each key occurs in one slot. The probability of slot i (from 1) is proportional to i^(power_a - 1),
      without replacement.
    - The other slots hold one constant filler, as for Figure 2 of the paper, or random tokens.

    The models here read a context and predict a target, with a loss on every target token. So the task
    differs from the paper:

    - The context is the marker of prefix_lm and the pairs. The model may read it in both directions. The
      slots are the target, so the model does not see them while it reads the pairs.
    - In the target, each key is followed by its value, where the paper has a filler. Later queries can see
      the value. As all keys are distinct, it does not reveal another answer.
    - In training, keys, fillers and END also have a loss. The order of the keys is unpredictable, so the
      loss does not reach zero. As in the paper, the metrics count only values.
    - The vocabulary (filler, keys and values) is the first text pieces of the tokenizer.

    Each query is a question. Its prompt is the context and the true target up to the key. Its answer is the
    next token. Sequence i depends only on i and the other settings. The answers of a sequence are one unit
    of intervals.

    Groups:
        pairs: the number of pairs.
        distance: the number of positions from the key's pair to its query.

    Attributes:
        vocab_size: the number of different tokens; half are keys (one of them the filler), half are values.
        sequence_length: the number of positions of pairs and slots; even, at least four for each pair.
        key_value_pairs: the number of pairs.
        power_a: the exponent a of the distribution of slots; smaller = earlier queries, 1 = uniform.
        random_fillers: whether fillers are random tokens of the vocabulary instead of one constant token.
        num_sequences: the number of sequences; each has a question for each pair.
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

    def unit_of(self, answer: ScoredAnswer) -> str:
        """Return the number of the sequence, whose queries share their pairs."""
        return answer.question.name.partition("-")[0]

    def training_examples(self, tokenizer: Tokenizer) -> GeneratedExamples:
        """Return a generator of sequences of `sequence_length` positions plus the marker and END.

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
    """Random training sequences."""

    def __init__(self, task: AssociativeRecall, tokens: np.ndarray):
        """Store the task and the token ids of its vocabulary."""
        self._task, self._tokens = task, tokens

    def draw(self, rng: np.random.Generator, max_positions: int) -> Example | None:
        """Return a sequence with the marker and END; None if it does not fit `max_positions`."""
        if self._task.sequence_length + 2 > max_positions:
            return None
        sequence = self._task.draw_sequence(rng)
        context = np.concatenate([[vocabulary.PREFIX_LM], self._tokens[sequence.pairs]])
        target = np.append(self._tokens[sequence.queries], vocabulary.END)
        return Example(context.astype(np.int32), target.astype(np.int32))
