"""The bytes of one record of a token shard: a header of eight bytes, then the token ids.

Little-endian: uint32 number of tokens, uint8 flags (bit 0: the record ends its document), uint8 bytes per
token (2 or 4), two zero bytes; then the ids as uint16 or uint32. ArrayRecord stores a hash with each record
and checks it on every read, so the header has no hash.
"""

import struct
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

_HEADER = struct.Struct("<IBBxx")
_ENDS_DOCUMENT = 1


class TokenRecord(NamedTuple):
    """A document, or one of the consecutive parts of a long document.

    Attributes:
        tokens: int32 token ids, all at least 256: special tokens are not stored.
        ends_document: whether the document ends with this record.
    """

    tokens: Int[np.ndarray, " tokens"]
    ends_document: bool


def choose_dtype(vocab_size: int) -> str:
    """Return the smallest dtype, `"uint16"` or `"uint32"`, that holds ids below `vocab_size`."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def encode_record(tokens: Int[np.ndarray, " tokens"], ends_document: bool, dtype: str) -> bytes:
    """Return the bytes of a record; `dtype` is `"uint16"` or `"uint32"` and every id must fit in it."""
    stored = tokens.astype(np.dtype(dtype).newbyteorder("<"))
    header = _HEADER.pack(len(tokens), _ENDS_DOCUMENT if ends_document else 0, stored.itemsize)
    return header + stored.tobytes()


def decode_record(payload: bytes, dtype: str) -> TokenRecord:
    """Return the record that `encode_record` wrote with the same `dtype`.

    Raises:
        ValueError: the bytes are not such a record; describes them.
    """
    if len(payload) < _HEADER.size:
        raise ValueError(f"{len(payload)} bytes, fewer than a header's {_HEADER.size}")
    count, flags, itemsize = _HEADER.unpack_from(payload)
    stored_type = np.dtype(dtype).newbyteorder("<")
    if itemsize != stored_type.itemsize or len(payload) != _HEADER.size + count * itemsize:
        raise ValueError(
            f"{len(payload)} bytes with a header of {count} tokens of {itemsize} bytes, "
            f"where {_HEADER.size} + tokens x {stored_type.itemsize} are expected"
        )
    tokens = np.frombuffer(payload, dtype=stored_type, offset=_HEADER.size)
    return TokenRecord(tokens.astype(np.int32), bool(flags & _ENDS_DOCUMENT))


def split_evenly(tokens: Int[np.ndarray, " tokens"], record_tokens: int) -> list[np.ndarray]:
    """Cut a document's tokens into ceil(n / record_tokens) consecutive parts of near-equal size.

    Every part has at most `record_tokens` tokens. Near-equal sizes avoid a tiny last record.
    """
    return np.array_split(tokens, max(1, -(-len(tokens) // record_tokens)))
