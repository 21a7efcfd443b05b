"""The pieces of a SentencePiece model."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import sentencepiece
from jaxtyping import Int, Integer

from birdie_jax.errors import DataError

# SentencePiece encodes a space as this character, and therefore decodes this character as a space.
_SPACE_MARK = "\u2581"
_EXACTNESS_PROBE = "  a \n\t b\u00a0\ufb01  "


class SentencePiecePieces:
    """The pieces of a SentencePiece model; see `pieces.Pieces`.

    Attributes:
        count: the number of pieces.
    """

    def __init__(self, model_bytes: bytes, name: str):
        """Load a model; messages call it `name`.

        Raises:
            DataError: the bytes are not a SentencePiece model.
        """
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=model_bytes)
        except (RuntimeError, OSError, ValueError) as error:
            raise DataError(f"{name}: is not a SentencePiece model ({error})") from error
        self.count = processor.get_piece_size()
        if self.count == 0:
            raise DataError(f"{name}: is not a SentencePiece model (it has no pieces)")
        try:
            self._texts = [processor.id_to_piece(piece) for piece in range(self.count)]
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}: is not a SentencePiece model (a piece is not UTF-8: {error})"
            ) from error
        self._processor = processor
        self._space_mark_pieces = _space_mark_pieces(processor)

    def encode(self, texts: Sequence[str], num_threads: int) -> list[np.ndarray]:
        """Return the int32 pieces of each text; see `Pieces`."""
        mark_pieces = self._space_mark_pieces
        if mark_pieces is None or not any(_SPACE_MARK in text for text in texts):
            return self._encode(list(texts), num_threads)
        parts = [text.split(_SPACE_MARK) for text in texts]
        encoded = iter(self._encode([part for text_parts in parts for part in text_parts], num_threads))
        joined = []
        for text_parts in parts:
            arrays = [next(encoded)]
            for _ in text_parts[1:]:
                arrays += [mark_pieces, next(encoded)]
            joined.append(np.concatenate(arrays))
        return joined

    def _encode(self, texts: list[str], num_threads: int) -> list[np.ndarray]:
        try:
            return self._processor.encode(texts, return_type="numpy", num_threads=num_threads)
        except (RuntimeError, TypeError):
            for text in texts:
                text.encode()  # UnicodeEncodeError, a ValueError, names the surrogate and its place
            raise

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the pieces of a text and their character ranges; see `Pieces`."""
        mark_pieces = self._space_mark_pieces
        parts = [text] if mark_pieces is None else text.split(_SPACE_MARK)
        pieces: list[np.ndarray] = []
        offsets: list[np.ndarray] = []
        begin = 0
        for number, part in enumerate(parts):
            if number and mark_pieces is not None:
                pieces.append(mark_pieces)
                offsets.append(begin + np.array([[0, 0]] * (len(mark_pieces) - 1) + [[0, 1]], np.int64))
                begin += 1
            part.encode()
            found = self._processor.encode(part, return_type="offset_mapping")
            pieces.append(np.array(found["ids"], np.int32))
            offsets.append(begin + np.array(found["offsets"], np.int64).reshape(-1, 2))
            begin += len(part)
        return np.concatenate(pieces).astype(np.int32), np.concatenate(offsets)

    def decode(self, pieces: Integer[np.ndarray, " pieces"]) -> str:
        """Return the text of pieces."""
        # sentencepiece accepts an array, but its annotation says Sequence.
        return self._processor.decode(cast(Sequence[int], pieces))

    def ordinary(self) -> list[int]:
        """Return the ordinary pieces; see `Pieces`."""
        processor = self._processor
        others = (processor.is_byte, processor.is_control, processor.is_unknown, processor.is_unused)
        return [piece for piece in range(self.count) if not any(is_other(piece) for is_other in others)]

    def byte_lengths(self) -> Int[np.ndarray, " pieces"]:
        """Return the number of UTF-8 bytes of each piece; see `Pieces`."""
        lengths = np.ones(self.count, np.int64)
        for piece in range(self.count):
            if not any(kind(piece) for kind in (self._processor.is_byte, self._processor.is_unknown)):
                lengths[piece] = len(self._texts[piece].replace(_SPACE_MARK, " ").encode())
        return lengths


def _space_mark_pieces(
    processor: sentencepiece.SentencePieceProcessor,
) -> Int[np.ndarray, " 3"] | None:
    """Return the three byte pieces of U+2581, or None if the model does not preserve text exactly."""
    if processor.normalize(_EXACTNESS_PROBE) != _EXACTNESS_PROBE.replace(" ", _SPACE_MARK):
        return None
    pieces = [processor.piece_to_id(f"<0x{byte:02X}>") for byte in _SPACE_MARK.encode()]
    if not all(processor.is_byte(piece) for piece in pieces):
        return None
    return np.array(pieces, dtype=np.int32)
