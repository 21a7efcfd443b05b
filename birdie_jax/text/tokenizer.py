"""A SentencePiece model behind the fixed block of special ids: piece p is token p + 256."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import sentencepiece
from jaxtyping import Int, Integer

from birdie_jax.storage import is_remote, read_bytes
from birdie_jax.text.errors import DataError
from birdie_jax.text.locations import Location, locate, reason
from birdie_jax.text.regular_files import read_regular
from birdie_jax.text.saving import save_file
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS, padded_vocab_size, special_token_name

# SentencePiece writes a space as this character, and so decodes this character as a space.
_SPACE_MARK = "\u2581"
_EXACTNESS_PROBE = "  a \n\t b\u00a0\ufb01  "


class Tokenizer:
    """Text to token ids and back, with any SentencePiece model.

    No text gives a special id (0..255), not even text that looks like a special token. Instances can be
    pickled (the model's bytes travel) and shared between threads.

    Attributes:
        name: the model's file, or what was said to stand for it; used in messages.
        model_bytes: the SentencePiece model, as in its file.
        sha256: hexadecimal hash of `model_bytes`; it identifies the tokenizer of token shards.
        num_pieces: pieces of the model.
        vocab_size: rows that an embedding table needs: `num_pieces` + 256, padded to a multiple of 128.
    """

    def __init__(self, model: str | Location):
        self._load(_read_model(locate(model)), str(model))

    @classmethod
    def from_bytes(cls, model_bytes: bytes, name: str = "tokenizer model in memory") -> "Tokenizer":
        """Return a tokenizer of a model given as its file's bytes; `name` stands for it in messages.

        Raises:
            DataError: the bytes are not a SentencePiece model.
        """
        tokenizer = cls.__new__(cls)
        tokenizer._load(model_bytes, name)
        return tokenizer

    def _load(self, model_bytes: bytes, name: str) -> None:
        if not model_bytes:
            raise DataError(f"{name}: is empty; a SentencePiece model is expected")
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=model_bytes)
        except (RuntimeError, OSError, ValueError) as error:
            raise DataError(f"{name}: is not a SentencePiece model ({error})") from error
        self.num_pieces = processor.get_piece_size()
        if self.num_pieces == 0:
            raise DataError(f"{name}: is not a SentencePiece model (it has no pieces)")
        self.name = name
        self.model_bytes = model_bytes
        self.sha256 = hashlib.sha256(model_bytes).hexdigest()
        self.vocab_size = padded_vocab_size(self.num_pieces)
        self._processor = processor
        self._space_mark_tokens = _space_mark_tokens(processor)

    def __reduce__(self):
        return Tokenizer.from_bytes, (self.model_bytes, self.name)

    def encode(self, text: str) -> Int[np.ndarray, " tokens"]:
        """Return the int32 token ids of `text`, all at least 256.

        Raises:
            ValueError: `text` holds a lone surrogate, so that it is not Unicode text.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str], num_threads: int = 1) -> list[np.ndarray]:
        """Return the int32 token ids of each text, as `encode` does, on `num_threads` threads (-1: all).

        Raises:
            ValueError: a text holds a lone surrogate, so that it is not Unicode text.
        """
        texts = list(texts)
        mark_tokens = self._space_mark_tokens
        if mark_tokens is None or not any(_SPACE_MARK in text for text in texts):
            return self._encode(texts, num_threads)
        parts = [text.split(_SPACE_MARK) for text in texts]
        encoded = iter(self._encode([part for text_parts in parts for part in text_parts], num_threads))
        joined = []
        for text_parts in parts:
            arrays = [next(encoded)]
            for _ in text_parts[1:]:
                arrays += [mark_tokens, next(encoded)]
            joined.append(np.concatenate(arrays))
        return joined

    def _encode(self, texts: list[str], num_threads: int) -> list[np.ndarray]:
        try:
            encoded = self._processor.encode(texts, return_type="numpy", num_threads=num_threads)
        except (RuntimeError, TypeError):
            for text in texts:
                text.encode()  # UnicodeEncodeError, a ValueError, names the surrogate and its place
            raise
        return [pieces + np.int32(NUM_SPECIAL_TOKENS) for pieces in encoded]

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the token ids of `text`, those of `encode`, and the characters that each stands for.

        Returns:
            int32 [tokens], and int64 [tokens, 2]: the first character of each token and the one behind its
            last, in the numbers of `text`. Of the tokens of single bytes the last of a character has it.

        Raises:
            ValueError: `text` holds a lone surrogate, so that it is not Unicode text.
        """
        mark_tokens = self._space_mark_tokens
        parts = [text] if mark_tokens is None else text.split(_SPACE_MARK)
        tokens: list[np.ndarray] = []
        offsets: list[np.ndarray] = []
        begin = 0
        for number, part in enumerate(parts):
            if number and mark_tokens is not None:
                tokens.append(mark_tokens)
                offsets.append(begin + np.array([[0, 0]] * (len(mark_tokens) - 1) + [[0, 1]], np.int64))
                begin += 1
            part.encode()
            found = self._processor.encode(part, return_type="offset_mapping")
            tokens.append(np.array(found["ids"], np.int32) + np.int32(NUM_SPECIAL_TOKENS))
            offsets.append(begin + np.array(found["offsets"], np.int64).reshape(-1, 2))
            begin += len(part)
        return np.concatenate(tokens).astype(np.int32), np.concatenate(offsets)

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
        # Annotated as a sequence in sentencepiece, which takes an array as it is.
        return self._processor.decode(cast(Sequence[int], (ids - NUM_SPECIAL_TOKENS).astype(np.int32)))

    def ordinary_tokens(self) -> Int[np.ndarray, " tokens"]:
        """Return the int32 ids of the pieces of text: no bytes, no control, unknown or unused pieces."""
        processor = self._processor
        others = (processor.is_byte, processor.is_control, processor.is_unknown, processor.is_unused)
        pieces = [
            piece for piece in range(self.num_pieces) if not any(is_other(piece) for is_other in others)
        ]
        return np.array(pieces, np.int32) + np.int32(NUM_SPECIAL_TOKENS)

    def byte_lengths(self) -> Int[np.ndarray, " ids"]:
        """Return the UTF-8 bytes of the text that each token id stands for, int64; 0 for special ids.

        Those of a text's tokens sum to the bytes of the text for the models that `train_tokenizer` makes; a
        model that normalises text, or has no piece for some character, is off by what it changes. There a
        piece without text of its own counts 1.
        """
        lengths = np.ones(NUM_SPECIAL_TOKENS + self.num_pieces, np.int64)
        lengths[:NUM_SPECIAL_TOKENS] = 0
        for piece in range(self.num_pieces):
            if not any(kind(piece) for kind in (self._processor.is_byte, self._processor.is_unknown)):
                text = self._processor.id_to_piece(piece).replace(_SPACE_MARK, " ")
                lengths[NUM_SPECIAL_TOKENS + piece] = len(text.encode())
        return lengths

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


def _space_mark_tokens(
    processor: sentencepiece.SentencePieceProcessor,
) -> Int[np.ndarray, " 3"] | None:
    """Return the three byte tokens of U+2581, or None where the model would not keep text exact anyway."""
    if processor.normalize(_EXACTNESS_PROBE) != _EXACTNESS_PROBE.replace(" ", _SPACE_MARK):
        return None
    pieces = [processor.piece_to_id(f"<0x{byte:02X}>") for byte in _SPACE_MARK.encode()]
    if not all(processor.is_byte(piece) for piece in pieces):
        return None
    return np.array(pieces, dtype=np.int32) + np.int32(NUM_SPECIAL_TOKENS)
