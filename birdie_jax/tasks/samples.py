"""The samples that heads of fine-tuning read: `[MASKED_LM] a [SEP]`, or `[MASKED_LM] a [SEP] b [SEP]`.

The special tokens stand where Devlin et al. 2019 have [CLS] and [SEP]; the marker is that of masked LM.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from birdie_jax import vocabulary
from birdie_jax.objectives import NO_LABEL, Example
from birdie_jax.storage import Bounds

# The setting of a task by which texts are cut; 0 = nothing is cut. Below 8 hardly a word would be left.
MaxPositions = Annotated[int, Bounds(at_least=8, at_most=2**24, besides=(0,))]


class Sample(NamedTuple):
    """What is read at once, and what is to be told of it.

    Attributes:
        name: the place of its record, such as `dev.tsv: line 3`.
        texts: one text, or two.
        label: the label as heads have it, see birdie_jax/models/task_head.py.
    """

    name: str
    texts: tuple[str, ...]
    label: int


def sample_tokens(
    texts: Sequence[Int32[np.ndarray, " _"]], max_positions: int = 0
) -> Int32[np.ndarray, " positions"]:
    """Return the context of a sample of one or two texts.

    Args:
        texts: the tokens of each text.
        max_positions: the largest length of the context, for which the end of the longest text is left out
            until all are as long as the second longest, then that of all; 0 = nothing is left out.
    """
    if max_positions:
        texts = cut_longest(texts, max(max_positions - 1 - len(texts), 0))
    parts = [np.array([vocabulary.MASKED_LM], np.int32)]
    for tokens in texts:
        parts += [tokens, np.array([vocabulary.SEPARATOR], np.int32)]
    return np.concatenate(parts).astype(np.int32)


def cut_longest(texts: Sequence[Int32[np.ndarray, " _"]], max_tokens: int) -> list[Int32[np.ndarray, " _"]]:
    """Return the beginnings of texts, together at most `max_tokens` long, cut where they are longest."""
    lengths, order = [len(text) for text in texts], sorted(range(len(texts)), key=lambda n: len(texts[n]))
    left = max_tokens
    for place, number in enumerate(order):
        # The shortest one takes what it needs of its share; what it leaves is the others'.
        lengths[number] = min(lengths[number], left // (len(order) - place))
        left -= lengths[number]
    return [text[:length] for text, length in zip(texts, lengths, strict=True)]


def labelled_example(context: Int32[np.ndarray, " positions"], label: int) -> Example:
    """Return the example of a context whose label stands on its first position."""
    labels = np.full(len(context), NO_LABEL, np.int32)
    labels[0] = label
    return Example(context, np.empty(0, np.int32), labels=labels)


class SampleExamples:
    """The training examples of samples, in their order; a `RecordedExamples` that names each.

    Attributes:
        lengths: the positions that each example covers, int64 [examples].
        sha256: the hash of all examples.
        refused: a line for each record that was passed over.
    """

    def __init__(
        self,
        names: Sequence[str],
        contexts: Sequence[Int32[np.ndarray, " _"]],
        labels: Sequence[int],
        refused: Sequence[str] = (),
    ):
        """Keep the contexts, one after another in one array, their labels, and what was passed over."""
        self.refused = tuple(refused)
        self._names, self._labels = list(names), np.array(labels, np.int32)
        self.lengths: Int64[np.ndarray, " examples"] = np.array(list(map(len, contexts)), np.int64)
        self._ends = self.lengths.cumsum()
        self._tokens = np.concatenate([np.zeros(0, np.int32), *contexts])
        hashed = hashlib.sha256(self.lengths.tobytes())
        hashed.update(self._tokens.tobytes())
        hashed.update(self._labels.tobytes())
        self.sha256 = hashed.hexdigest()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Example:
        end = self._ends[index]
        context = self._tokens[end - self.lengths[index] : end]
        return labelled_example(context, int(self._labels[index]))

    def name_of(self, index: int) -> str:
        """Return the place of an example's record."""
        return self._names[index]
