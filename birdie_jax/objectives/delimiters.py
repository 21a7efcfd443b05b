"""Finds, in a text, runs of tokens that occur there exactly once: the delimiters of selective copying."""

import numpy as np
from jaxtyping import Int32


class UniqueRuns:
    """Measures how long a run of tokens has to be to occur only once in a text.

    Args:
        tokens: int32 `[tokens]`, ids that are not negative.
        max_length: the length of the longest run that will be asked for.
    """

    def __init__(self, tokens: Int32[np.ndarray, " tokens"], max_length: int):
        self._tokens = tokens
        # No id is negative, so a run that leaves the text can equal none inside it: bounds need no checks.
        self._padded = np.full(len(tokens) + 2 * max_length, -1, np.int32)
        self._padded[max_length : max_length + len(tokens)] = tokens
        self._offset = max_length

    def min_unique_length(self, position: int, step: int, max_length: int) -> int:
        """Return the length of the shortest unique run from `position`; 0 if it exceeds `max_length`.

        Args:
            position: where in the text the run starts.
            step: 1 for a run that goes on to the right of `position`, -1 for one that goes on to the left.
            max_length: the length of the longest run to try.
        """
        matches = np.flatnonzero(self._tokens == self._tokens[position])
        matches += self._offset
        place = position + self._offset
        for length in range(1, max_length):
            if len(matches) == 1:
                return length
            move = step * length
            matches = matches[self._padded[matches + move] == self._padded[place + move]]
        return max_length if len(matches) == 1 else 0
