"""The lengths of each arm's examples, counted on rows that are made as in training."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from birdie_jax.batching.packing import packed_length
from birdie_jax.batching.row_stream import RowSettings, RowStream
from birdie_jax.objectives import NO_LABEL, Arm, Example
from birdie_jax.text.corpora import RowText

# The share of the examples that is drawn from all arms evenly, so rare arms are counted too.
_EVEN_SHARE = 0.1
_MIN_EXAMPLES_OF_ARM = 4


class ArmLengths(NamedTuple):
    """Counts over examples that were drawn, by arm; every arm has some.

    Attributes:
        examples: the number of examples.
        positions: the positions that they cover, context and target.
        target_tokens: the tokens of their targets, or their labels in place, which bear the loss.
    """

    examples: Int64[np.ndarray, " arms"]
    positions: Int64[np.ndarray, " arms"]
    target_tokens: Int64[np.ndarray, " arms"]

    @property
    def mean_positions(self) -> Float64[np.ndarray, " arms"]:
        """The mean number of positions of an example of each arm."""
        return self.positions / self.examples

    @property
    def mean_target_tokens(self) -> Float64[np.ndarray, " arms"]:
        """The mean number of target tokens of an example of each arm."""
        return self.target_tokens / self.examples


def count_lengths(
    text: RowText,
    arms: tuple[Arm, ...],
    settings: RowSettings,
    probabilities: Float64[np.ndarray, " arms"],
    num_examples: int,
) -> ArmLengths:
    """Draw examples into rows under a mixture, and count how long those of each arm are.

    They depend on the mixture a little, because an example may be cut to the room that others leave it in a
    row. The counts are a function of the text and the arguments alone, the same on every machine.

    Args:
        text: the training split.
        arms: the arms of the mixture.
        settings: what the rows of training share.
        probabilities: the probabilities with which arms are drawn; a tenth of the examples is drawn from
            all arms evenly.
        num_examples: the minimum number of examples in all.

    Raises:
        DataError: the text cannot be read, or cannot make an example of an arm; the message names it.
    """
    counts = np.zeros((len(arms), 3), np.int64)
    even = np.full(len(arms), 1 / len(arms))
    # One row's stream alone: what it still holds back at the end, mostly long examples, is not counted.
    stream = RowStream(text, arms, settings, row=0)
    stream.set_mixture((1 - _EVEN_SHARE) * probabilities / probabilities.sum() + _EVEN_SHARE * even)
    while counts[:, 0].sum() < num_examples or counts[:, 0].min() < _MIN_EXAMPLES_OF_ARM:
        for example in stream.next_row():
            counts[example.arm] += 1, packed_length(example), _loss_tokens(example)
    return ArmLengths(*counts.T)


def _loss_tokens(example: Example) -> int:
    """Return the number of tokens that bear loss: the target's, or the labels in place."""
    if example.labels is None:
        return len(example.target)
    return int((example.labels != NO_LABEL).sum())
