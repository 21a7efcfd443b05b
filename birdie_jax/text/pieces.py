"""The interface between `Tokenizer` and a tokenizer library."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from jaxtyping import Int, Integer


class Pieces(Protocol):
    """A trained model that splits text into numbered pieces.

    Attributes:
        count: the number of pieces; the ids are 0 to `count` - 1.
    """

    count: int

    def encode(self, texts: Sequence[str], num_threads: int) -> list[np.ndarray]:
        """Return the int32 pieces of each text.

        Args:
            texts: the texts.
            num_threads: the number of threads, if the library lets the caller choose it; -1 = all.

        Raises:
            ValueError: a text contains a lone surrogate, so it is not Unicode text.
        """
        ...

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the int32 pieces of a text, and int64 [pieces, 2]: the character range of each piece.

        Raises:
            ValueError: the text contains a lone surrogate, so it is not Unicode text.
        """
        ...

    def decode(self, pieces: Integer[np.ndarray, " pieces"]) -> str:
        """Return the text of pieces."""
        ...

    def ordinary(self) -> list[int]:
        """Return the ordinary pieces: not byte, control, unknown or unused pieces."""
        ...

    def byte_lengths(self) -> Int[np.ndarray, " pieces"]:
        """Return the number of UTF-8 bytes of each piece's text, int64; 1 for a piece without text."""
        ...
