"""The lengths of each arm's examples, counted on rows made as in training."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from birdie_jax.batching.packing import packed_length
from birdie_jax.batching.row_stream import RowSettings, RowStream
from birdie_jax.objectives import NO_LABEL, Arm, Example
from birdie_jax.text.corpora import RowText

# The fraction of examples drawn evenly from all arms, so rare arms are counted too.
_EVEN_SHARE = 0.1
_MIN_EXAMPLES_OF_ARM = 4


class ArmLengths(NamedTuple):
    """Counts over drawn examples, by arm; every arm has some examples.

    Attributes:
        examples: the number of examples.
        positions: the number of their positions, context and target.
        target_tokens: the number of their tokens with loss: the targets, or the labels in place.
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
    """Draw examples into rows under a mixture, and count the lengths of each arm's examples.

    The lengths depend slightly on the mixture, because an example may be cut to the room left in a row. The
    counts depend only on the text and the arguments, and are the same on every machine.

    Args:
        text: the training split.
        arms: the arms of the mixture.
        settings: the settings of the training rows.
        probabilities: the probability of drawing each arm; a tenth of the examples is drawn evenly from all
            arms instead.
        num_examples: the minimum total number of examples.

    Raises:
        DataError: the text cannot be read, or no example of an arm can be made from it; names the arm.
    """
    counts = np.zeros((len(arms), 3), np.int64)
    even = np.full(len(arms), 1 / len(arms))
    # One stream only: examples still buffered at the end, mostly long ones, are not counted.
    stream = RowStream(text, arms, settings, row=0)
    stream.set_mixture((1 - _EVEN_SHARE) * probabilities / probabilities.sum() + _EVEN_SHARE * even)
    while counts[:, 0].sum() < num_examples or counts[:, 0].min() < _MIN_EXAMPLES_OF_ARM:
        for example in stream.next_row():
            counts[example.arm] += 1, packed_length(example), _loss_tokens(example)
    return ArmLengths(*counts.T)


def _loss_tokens(example: Example) -> int:
    """Return the number of tokens with loss: the target tokens, or the labels in place."""
    if example.labels is None:
        return len(example.target)
    return int((example.labels != NO_LABEL).sum())
