"""The pieces of a tokenizer.json, using the library `tokenizers` (the extra `huggingface`)."""

import json
import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Integer

from birdie_jax.errors import DataError

# A piece of byte fallback, for a byte of a character that has no piece.
_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")


class HuggingFacePieces:
    """The pieces of a tokenizer.json; see `pieces.Pieces`.

    Encoding adds no special tokens, truncation or padding, even if the file configures them. Text that
    looks like one of the file's special tokens is encoded as text.

    Attributes:
        count: the number of pieces.
    """

    def __init__(self, model_bytes: bytes, name: str):
        """Load a tokenizer.json; messages call it `name`.

        Raises:
            DataError: the bytes are not a tokenizer.json, its ids have gaps, or the library is not
                installed.
        """
        try:
            # The library is large and only tokenizer.json needs it.
            import tokenizers
        except ModuleNotFoundError as error:
            raise DataError(
                f"{name}: is a tokenizer.json, and the library that reads it is not installed; allowed: "
                "pip install 'birdie-jax[huggingface]', or a SentencePiece model"
            ) from error
        try:
            tokenizer = tokenizers.Tokenizer.from_str(model_bytes.decode())
        # The library raises plain exceptions.
        except Exception as error:
            raise DataError(f"{name}: is not a tokenizer.json ({error})") from error
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.count = len(vocabulary)
        if not vocabulary or max(vocabulary.values()) != self.count - 1:
            raise DataError(
                f"{name}: has {self.count} pieces with ids up to {max(vocabulary.values(), default=-1)}; "
                "allowed: ids without a gap"
            )
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self._special = {
            id_ for id_, token in tokenizer.get_added_tokens_decoder().items() if token.special
        }
        self._by_bytes = _is_by_bytes(json.loads(model_bytes).get("decoder"))

    def encode(self, texts: Sequence[str], num_threads: int) -> list[np.ndarray]:
        """Return the int32 pieces of each text; see `Pieces`."""
        del num_threads
        for text in texts:
            text.encode()  # UnicodeEncodeError, a ValueError, names a lone surrogate and its place
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(found.ids, np.int32) for found in encoded]

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the pieces of a text and their character ranges; see `Pieces`."""
        text.encode()
        found = self._tokenizer.encode(text, add_special_tokens=False)
        offsets = np.array(found.offsets, np.int64).reshape(-1, 2)
        # The library gives several byte pieces of one character the same range; keep only the last one's.
        again = np.zeros(len(offsets), bool)
        again[:-1] = (offsets[:-1] == offsets[1:]).all(axis=1)
        offsets[again, 1] = offsets[again, 0]
        return np.array(found.ids, np.int32), offsets

    def decode(self, pieces: Integer[np.ndarray, " pieces"]) -> str:
        """Return the text of pieces."""
        return self._tokenizer.decode(pieces.tolist(), skip_special_tokens=False)

    def ordinary(self) -> list[int]:
        """Return the ordinary pieces; see `Pieces`."""
        return [
            piece
            for piece in range(self.count)
            if piece not in self._special
            and not _BYTE_PIECE.fullmatch(self._tokenizer.id_to_token(piece) or "")
        ]

    def byte_lengths(self) -> Int[np.ndarray, " pieces"]:
        """Return the number of UTF-8 bytes of each piece; see `Pieces`."""
        lengths = np.ones(self.count, np.int64)
        added = self._tokenizer.get_added_tokens_decoder()
        for piece in range(self.count):
            text = self._tokenizer.id_to_token(piece) or ""
            if piece in added:
                lengths[piece] = len(added[piece].content.encode())
            elif self._by_bytes:
                # Each byte is written as one character. Unused ids occur in no text.
                lengths[piece] = len(text)
            elif not _BYTE_PIECE.fullmatch(text):
                # Many decoders strip the space at an end of the text, so measure the piece inside.
                size = self._decoded_bytes([piece] * 3) - self._decoded_bytes([piece] * 2)
                lengths[piece] = max(size, 1)
        return lengths

    def _decoded_bytes(self, pieces: list[int]) -> int:
        return len(self._tokenizer.decode(pieces, skip_special_tokens=False).encode())


def _is_by_bytes(decoder: object) -> bool:
    if not isinstance(decoder, dict):
        return False
    return decoder.get("type") == "ByteLevel" or any(map(_is_by_bytes, decoder.get("decoders", ())))
