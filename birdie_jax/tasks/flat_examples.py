"""Recorded examples as a few flat arrays: millions of them in little more memory than their tokens take."""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from birdie_jax import vocabulary
from birdie_jax.generation import make_prompt
from birdie_jax.objectives import Example, make_objective
from birdie_jax.tasks.training_examples import PROMPT_OBJECTIVE
from birdie_jax.text import Tokenizer

# Texts that are tokenized at a time, on all cores.
_BLOCK = 4096
_PROBE = "a"
_END = np.array([vocabulary.END], np.int32)


class FlatExamples:
    """The examples of pairs of texts, in their order; a `RecordedExamples`.

    Tokens take 4 bytes each, twice that while they are joined, and an example 24 bytes beside its name.

    Attributes:
        lengths: the positions that each example covers, int64 [examples].
        sha256: a hash of all examples.
        refused: a line for each record that was passed over.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[str, str]],
        names: Sequence[str],
        refused: Sequence[str],
        tokenizer: Tokenizer,
    ):
        """Tokenize prompts and answers; each pair gives the example that `training_example` gives.

        Args:
            pairs: for each example its prompt, with at least one token, and its answer.
            names: what people call each example.
            refused: a line for each record that was passed over.
            tokenizer: the tokenizer of the model.
        """
        self._names, self.refused = names, tuple(refused)
        # What stands before the text of every prompt.
        objective = make_objective(PROMPT_OBJECTIVE)
        marker = make_prompt(_PROBE, objective, tokenizer).context[: -len(tokenizer.encode(_PROBE))]
        blocks, contexts, ends = [_END[:0]], [], []
        end = 0
        for pair in _blocks(pairs):
            prompts, answers = (
                tokenizer.encode_batch(texts, num_threads=-1) for texts in zip(*pair, strict=True)
            )
            parts = []
            for prompt, answer in zip(prompts, answers, strict=True):
                contexts.append(len(marker) + len(prompt))
                end += contexts[-1] + len(answer) + 1
                ends.append(end)
                parts += [marker, prompt, answer, _END]
            blocks.append(np.concatenate(parts))
        self._tokens = np.concatenate(blocks)
        self._contexts, self._ends = np.array(contexts, np.int64), np.array(ends, np.int64)
        self.lengths = np.diff(self._ends, prepend=0)
        digest = hashlib.sha256()
        for array in (self._contexts, self._ends, self._tokens):
            digest.update(array.tobytes())
        self.sha256 = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Example:
        begin, end = self._ends[index] - self.lengths[index], self._ends[index]
        split = begin + self._contexts[index]
        return Example(self._tokens[begin:split], self._tokens[split:end])

    def name_of(self, index: int) -> str:
        """Return what people call an example."""
        return self._names[index]


def _blocks(pairs: Sequence[tuple[str, str]]) -> Iterator[Sequence[tuple[str, str]]]:
    for first in range(0, len(pairs), _BLOCK):
        yield pairs[first : first + _BLOCK]
