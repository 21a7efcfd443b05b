"""A tokenizer with a fixed block of special ids: piece p of the model is token p + 256."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int, Integer

from birdie_jax.errors import DataError
from birdie_jax.storage import is_remote, read_bytes
from birdie_jax.text.huggingface_pieces import HuggingFacePieces
from birdie_jax.text.locations import Location, locate, reason
from birdie_jax.text.pieces import Pieces
from birdie_jax.text.regular_files import read_regular
from birdie_jax.text.saving import save_file
from birdie_jax.text.sentencepiece_pieces import SentencePiecePieces
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS, padded_vocab_size, special_token_name

# A tokenizer.json is a JSON object; the protocol buffer of a SentencePiece model never starts like this.
_JSON_BEGINS = b"{"


class Tokenizer:
    """Encodes and decodes text with a SentencePiece model or a Hugging Face tokenizer.json.

    No text encodes to a special id (0..255), not even text that looks like a special token. You can pickle
    an instance (the pickle contains the model's bytes) and share it between threads. The contents of a file
    decide its kind, not its name.

    Attributes:
        name: the path of the model, or the name given for it; used in messages.
        model_bytes: the contents of the file.
        is_json: whether the model is a tokenizer.json.
        sha256: the hexadecimal SHA-256 of `model_bytes`; token shards name their tokenizer by it.
        num_pieces: the number of pieces of the model.
        vocab_size: the rows of the embedding table: `num_pieces` + 256, padded to a multiple of 128.
    """

    def __init__(self, model: str | Location):
        self._load(_read_model(locate(model)), str(model))

    @classmethod
    def from_bytes(cls, model_bytes: bytes, name: str = "tokenizer model in memory") -> "Tokenizer":
        """Return a tokenizer from the bytes of a model file; messages call it `name`.

        Raises:
            DataError: the bytes are neither a SentencePiece model nor a tokenizer.json.
        """
        tokenizer = cls.__new__(cls)
        tokenizer._load(model_bytes, name)
        return tokenizer

    def _load(self, model_bytes: bytes, name: str) -> None:
        if not model_bytes:
            raise DataError(f"{name}: is empty; allowed: a SentencePiece model or tokenizer.json")
        self.is_json = model_bytes.startswith(_JSON_BEGINS)
        kind = HuggingFacePieces if self.is_json else SentencePiecePieces
        self._pieces: Pieces = kind(model_bytes, name)
        self.num_pieces = self._pieces.count
        self.name = name
        self.model_bytes = model_bytes
        self.sha256 = hashlib.sha256(model_bytes).hexdigest()
        self.vocab_size = padded_vocab_size(self.num_pieces)

    def __reduce__(self):
        return Tokenizer.from_bytes, (self.model_bytes, self.name)

    def encode(self, text: str) -> Int[np.ndarray, " tokens"]:
        """Return the int32 token ids of `text`, all at least 256.

        Raises:
            ValueError: `text` contains a lone surrogate, so it is not Unicode text.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str], num_threads: int = 1) -> list[np.ndarray]:
        """Return the int32 token ids of each text, as `encode` does, on `num_threads` threads (-1: all).

        For a tokenizer.json, the `tokenizers` library chooses the number of threads.

        Raises:
            ValueError: a text contains a lone surrogate, so it is not Unicode text.
        """
        return [
            pieces + np.int32(NUM_SPECIAL_TOKENS)
            for pieces in self._pieces.encode(list(texts), num_threads)
        ]

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the token ids of `text`, as `encode` does, and the character range of each token.

        Returns:
            int32 [tokens], and int64 [tokens, 2]: the start and the exclusive end of each token in `text`.
            If several byte tokens form one character, the last of them covers it and the others are empty.

        Raises:
            ValueError: `text` contains a lone surrogate, so it is not Unicode text.
        """
        pieces, offsets = self._pieces.encode_with_offsets(text)
        return pieces + np.int32(NUM_SPECIAL_TOKENS), offsets

    def decode(self, tokens: Integer[np.ndarray, " tokens"] | Sequence[int]) -> str:
        """Return the text of token ids; a special id becomes its name, e.g. `[COPY]`.

        Each run of ordinary tokens between special tokens is decoded separately. This is the inverse of
        `encode` for models that `train_tokenizer` makes; other models may normalise text.

        Raises:
            ValueError: an id is neither special nor a piece; names the id, its index and the allowed ids.
        """
        ids = np.asarray(tokens, dtype=np.int64)
        end = NUM_SPECIAL_TOKENS + self.num_pieces
        unknown = np.flatnonzero((ids < 0) | (ids >= end))
        if unknown.size:
            place = int(unknown[0])
            raise ValueError(
                f"token {ids[place]} at place {place} is not in 0..{end - 1}, the ids of {self.name}"
            )
        special = ids < NUM_SPECIAL_TOKENS
        runs = np.split(ids, np.flatnonzero(special[1:] != special[:-1]) + 1)
        return "".join(self._decode_run(run) for run in runs if run.size)

    def _decode_run(self, ids: Integer[np.ndarray, " tokens"]) -> str:
        if ids[0] < NUM_SPECIAL_TOKENS:
            return "".join(special_token_name(int(token)) for token in ids)
        return self._pieces.decode((ids - NUM_SPECIAL_TOKENS).astype(np.int32))

    def ordinary_tokens(self) -> Int[np.ndarray, " tokens"]:
        """Return the int32 ids of the ordinary pieces: not byte, control, unknown or unused pieces."""
        return np.array(self._pieces.ordinary(), np.int32) + np.int32(NUM_SPECIAL_TOKENS)

    def byte_lengths(self) -> Int[np.ndarray, " ids"]:
        """Return the number of UTF-8 bytes of each token id's text, int64; 0 for special ids.

        For models that `train_tokenizer` makes, the lengths of a text's tokens sum to the bytes of the
        text. For a model that normalises text or lacks some characters, the sum differs by what the model
        changes. A piece without text counts as 1.
        """
        return np.concatenate([np.zeros(NUM_SPECIAL_TOKENS, np.int64), self._pieces.byte_lengths()])

    def save(self, path: str | Location) -> None:
        """Write the model to `path` atomically.

        Raises:
            DataError: the file cannot be written.
        """
        save_file(locate(path), self.model_bytes)


def _read_model(path: Location) -> bytes:
    try:
        return read_bytes(path) if is_remote(path) else read_regular(Path(path))
    except OSError as error:
        raise DataError(f"{path}: the tokenizer model cannot be read: {reason(error)}") from error
