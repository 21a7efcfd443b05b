"""Passages of tokens of given lengths: random tokens, or text of a source's train or validation split."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from birdie_jax.text import DataError, Tokenizer, open_source
from birdie_jax.text.tokenization import split_of

# Enough for any evaluation, and read in seconds.
_MAX_TOKENS = 1 << 22
_DOCUMENTS_AT_ONCE = 64


class TextSource(NamedTuple):
    """Where real text is read.

    Attributes:
        source: "stdlib", a file, a folder or a glob of documents, or such a URL.
        text_field: the field of .jsonl and .parquet records that holds the text.
        validation_fraction: the share of the documents that is for evaluation; where it is not larger than
            `data.validation_fraction` of a run on the same source, that run has not learned from them.
    """

    source: str
    text_field: str
    validation_fraction: float


class Passages:
    """Draws passages of as many tokens as are asked for."""

    def __init__(self, tokenizer: Tokenizer, text: TextSource | None, split: str):
        """Read text, up to four million tokens of it.

        Args:
            tokenizer: the tokenizer of the tokens.
            text: where to read text; None = uniformly random pieces of the tokenizer.
            split: the documents to read: "train" or "validation".

        Raises:
            DataError: the source cannot be read.
        """
        self._text, self._split = text, split
        self._pieces = tokenizer.ordinary_tokens() if text is None else np.empty(0, np.int32)
        self._documents = [] if text is None else _read_documents(tokenizer, text, split)
        self._lengths = np.array([len(document) for document in self._documents], np.int64)

    def draw(self, rng: np.random.Generator, length: int) -> Int32[np.ndarray, " tokens"]:
        """Return a passage: int32 [length].

        Every passage of that length is equally likely.

        Raises:
            DataError: no document has that many tokens.
        """
        if self._text is None:
            return rng.choice(self._pieces, length)
        starts = np.maximum(self._lengths - length + 1, 0).cumsum()
        if not starts.size or starts[-1] == 0:
            longest = int(self._lengths.max(initial=0))
            raise DataError(
                f"{self._text.source}: found no document of {length} tokens in its {self._split} split of "
                f"validation_fraction = {self._text.validation_fraction:g}; allowed: lengths of at most "
                f"{longest}, or another source or validation_fraction"
            )
        start = int(rng.integers(starts[-1]))
        document = int(np.searchsorted(starts, start, side="right"))
        first = start - (int(starts[document - 1]) if document else 0)
        return self._documents[document][first : first + length]


def _read_documents(tokenizer: Tokenizer, text: TextSource, split: str) -> list[np.ndarray]:
    documents: list[np.ndarray] = []
    waiting: list[str] = []
    count = 0
    for document in open_source(text.source, text.text_field).documents():
        if split_of(document.text, text.validation_fraction) != split:
            continue
        waiting.append(document.text)
        if len(waiting) == _DOCUMENTS_AT_ONCE:
            documents += tokenizer.encode_batch(waiting)
            count += sum(map(len, documents[-len(waiting) :]))
            waiting = []
        if count >= _MAX_TOKENS:
            return documents
    return documents + tokenizer.encode_batch(waiting)
