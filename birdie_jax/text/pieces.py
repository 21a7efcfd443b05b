"""The interface that a tokenizer requires of a library of pieces of text."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from jaxtyping import Int, Integer


class Pieces(Protocol):
    """A trained model that cuts text into numbered pieces.

    Attributes:
        count: the number of pieces; their ids are below it.
    """

    count: int

    def encode(self, texts: Sequence[str], num_threads: int) -> list[np.ndarray]:
        """Return the int32 pieces of each text.

        Args:
            texts: the texts.
            num_threads: the number of threads, where the library lets it be chosen; -1 = all.

        Raises:
            ValueError: a text holds a lone surrogate, so it is not Unicode text.
        """
        ...

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the int32 pieces of a text, and int64 [pieces, 2]: the characters of each.

        Raises:
            ValueError: the text holds a lone surrogate, so it is not Unicode text.
        """
        ...

    def decode(self, pieces: Integer[np.ndarray, " pieces"]) -> str:
        """Return the text of pieces."""
        ...

    def ordinary(self) -> list[int]:
        """Return the pieces of text: no bytes, no control, unknown or unused pieces."""
        ...

    def byte_lengths(self) -> Int[np.ndarray, " pieces"]:
        """Return the number of UTF-8 bytes of each piece's text, int64; 1 where it has none."""
        ...
