"""A model of pieces behind the fixed block of special ids: piece p is token p + 256."""

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

# A tokenizer.json is an object, and no protocol buffer of a SentencePiece model begins like one.
_JSON_BEGINS = b"{"


class Tokenizer:
    """Text to token ids and back, with any SentencePiece model, or a tokenizer.json of Hugging Face's.

    No text gives a special id (0..255), not even text that looks like a special token. Instances can be
    pickled (the model's bytes travel) and shared between threads. The contents of a file decide its kind,
    not its name.

    Attributes:
        name: the model's file, or the name given for it; used in messages.
        model_bytes: the contents of the file.
        is_json: whether they are a tokenizer.json.
        sha256: hexadecimal hash of `model_bytes`; it identifies the tokenizer of token shards.
        num_pieces: pieces of the model.
        vocab_size: rows that an embedding table needs: `num_pieces` + 256, padded to a multiple of 128.
    """

    def __init__(self, model: str | Location):
        self._load(_read_model(locate(model)), str(model))

    @classmethod
    def from_bytes(cls, model_bytes: bytes, name: str = "tokenizer model in memory") -> "Tokenizer":
        """Return a tokenizer of a model given as its file's bytes; messages call it `name`.

        Raises:
            DataError: the bytes are neither a SentencePiece model nor a tokenizer.json.
        """
        tokenizer = cls.__new__(cls)
        tokenizer._load(model_bytes, name)
        return tokenizer

    def _load(self, model_bytes: bytes, name: str) -> None:
        if not model_bytes:
            raise DataError(f"{name}: is empty; a SentencePiece model is expected")
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
            ValueError: `text` holds a lone surrogate, so it is not Unicode text.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str], num_threads: int = 1) -> list[np.ndarray]:
        """Return the int32 token ids of each text, as `encode` does, on `num_threads` threads (-1: all).

        Of a tokenizer.json its own library chooses the threads.

        Raises:
            ValueError: a text holds a lone surrogate, so it is not Unicode text.
        """
        return [
            pieces + np.int32(NUM_SPECIAL_TOKENS)
            for pieces in self._pieces.encode(list(texts), num_threads)
        ]

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the token ids of `text`, those of `encode`, and the characters of each.

        Returns:
            int32 [tokens], and int64 [tokens, 2]: the first character of each token and the one behind its
            last, in the numbers of `text`. Of the tokens of single bytes the last of a character has it.

        Raises:
            ValueError: `text` holds a lone surrogate, so it is not Unicode text.
        """
        pieces, offsets = self._pieces.encode_with_offsets(text)
        return pieces + np.int32(NUM_SPECIAL_TOKENS), offsets

    def decode(self, tokens: Integer[np.ndarray, " tokens"] | Sequence[int]) -> str:
        """Return the text of token ids; a special id is written as its name, e.g. `[COPY]`.

        Text between special tokens is decoded on its own. The inverse of `encode` for the models that
        `train_tokenizer` makes; other models may normalise text.

        Raises:
            ValueError: an id is neither special nor a piece; names the id, its place and the ids allowed.
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
        """Return the int32 ids of the pieces of text: no bytes, no control, unknown or unused pieces."""
        return np.array(self._pieces.ordinary(), np.int32) + np.int32(NUM_SPECIAL_TOKENS)

    def byte_lengths(self) -> Int[np.ndarray, " ids"]:
        """Return the number of UTF-8 bytes of each token id's text, int64; 0 for special ids.

        Those of a text's tokens sum to the bytes of the text for the models that `train_tokenizer` makes; a
        model that normalises text, or has no piece for some character, is off by what it changes. There a
        piece without text of its own counts 1.
        """
        return np.concatenate([np.zeros(NUM_SPECIAL_TOKENS, np.int64), self._pieces.byte_lengths()])

    def save(self, path: str | Location) -> None:
        """Write the model to `path` in one step.

        Raises:
            DataError: the file cannot be written.
        """
        save_file(locate(path), self.model_bytes)


def _read_model(path: Location) -> bytes:
    try:
        return read_bytes(path) if is_remote(path) else read_regular(Path(path))
    except OSError as error:
        raise DataError(f"{path}: the tokenizer model cannot be read: {reason(error)}") from error
