"""Which of the tokens that the device generates belong to an answer, and how many it may still get."""

from collections.abc import Sequence

import numpy as np

from birdie_jax.vocabulary import PADDING


class RemainingTokens:
    """The number of tokens that each answer of a batch may still get.

    Attributes:
        live: bool [prompts], true on the answers that are not complete.
    """

    def __init__(self, max_tokens: Sequence[int], stops: np.ndarray):
        self.live = np.ones(len(max_tokens), bool)
        self._left = np.array(max_tokens)
        self._stops = stops

    def take(self, tokens: np.ndarray) -> list[np.ndarray]:
        """Return of each row of `tokens` [prompts or more, chunk] those that belong to its answer."""
        found = []
        for row in range(len(self.live)):
            new = tokens[row][: self._left[row] if self.live[row] else 0]
            stops = np.flatnonzero(self._stops[new])
            new = new[: stops[0] + 1] if stops.size else new
            # Padding is never generated: it stands where the row was done.
            new = new[new != PADDING]
            self._left[row] -= len(new)
            self.live[row] &= not stops.size and self._left[row] > 0
            found.append(new)
        return found

    def end(self, ended: np.ndarray) -> None:
        """End the answers of the rows that are true in `ended`."""
        self.live &= ~ended
