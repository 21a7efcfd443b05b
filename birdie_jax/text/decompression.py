"""Streams files as bytes, decompressed by suffix; damage raises an error and never looks like the end.

A compressed file consists of one or more complete streams and the padding that its format allows. `gzip`
raises for anything else. `_read_streams` is our own, because `lzma.open` stops without an error if other
data follows a stream, and zstandard's reader across frames does so if a frame is truncated.
"""

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase, BufferedReader
from typing import Any, cast

import zstandard

from birdie_jax.errors import DataError
from birdie_jax.text.locations import Location, reason

# Small enough that the decompressed contents fit in memory at any compression ratio.
_INPUT_BYTES = 1 << 14
_OUTPUT_BYTES = 1 << 17
# The frames of the Pile declare windows of up to this size; zstandard allows 128 MiB by default.
_MAX_WINDOW_BYTES = 1 << 31
_XZ_PADDING_UNIT = 4

COMPRESSIONS = (".gz", ".xz", ".zst")


@contextmanager
def decompressed(path: Location, file: BufferedReader) -> Iterator[BufferedIOBase]:
    """Open the decompressed bytes of `file`; its position, `file.tell()`, counts compressed bytes.

    The suffix of `path` selects the compression (`COMPRESSIONS`); any other suffix is a plain file. Errors
    while the file is read inside the `with` also raise DataError.

    Raises:
        DataError: the file cannot be read, or its compressed data is corrupt, truncated or followed by
            other data.
    """
    try:
        if path.suffix not in COMPRESSIONS:
            yield file
            return
        if not file.peek(1):
            raise EOFError("it is empty; a compressed file never is")
        is_gzip = path.suffix == ".gz"
        raw = gzip.GzipFile(fileobj=file) if is_gzip else _Chunks(_read_streams(path.suffix, file))
        yield io.BufferedReader(cast(Any, raw), buffer_size=_OUTPUT_BYTES)
    except EOFError as error:
        raise DataError(f"{path}: is truncated or damaged: {error}") from error
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, zstandard.ZstdError) as error:
        raise DataError(f"{path}: is not valid {path.suffix} data: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}") from error


class _Chunks(io.RawIOBase):
    """A raw file over an iterator of chunks of bytes."""

    def __init__(self, chunks: Iterator[bytes]):
        super().__init__()
        self._chunks = chunks
        self._pending = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._pending:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._pending = memoryview(chunk)
        count = min(len(buffer), len(self._pending))
        buffer[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        return count


def _read_streams(suffix: str, file: BufferedReader) -> Iterator[bytes]:
    """Yield the contents of the streams (.xz) or frames (.zst) of a file, one after another.

    Raises EOFError if the file ends within a stream, and the decompressor's error if the file contains
    anything but streams and padding.
    """
    fed = file.read(_INPUT_BYTES)
    while fed:
        if suffix == ".xz":
            stream = lzma.LZMADecompressor(lzma.FORMAT_XZ)
        else:
            stream = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompressobj()
        while not stream.eof:
            if not fed:
                raise EOFError("compressed file ended before its end-of-stream marker")
            yield stream.decompress(fed)
            fed = stream.unused_data or file.read(_INPUT_BYTES)
        if suffix == ".xz":
            fed = _skip_padding(fed, file)


def _skip_padding(fed: bytes, file: BufferedReader) -> bytes:
    """Skip the zero bytes after a stream of .xz; return the bytes read after them."""
    padding = 0
    while fed and not fed.strip(b"\0"):
        padding += len(fed)
        fed = file.read(_INPUT_BYTES)
    rest = fed.lstrip(b"\0")
    padding += len(fed) - len(rest)
    if padding % _XZ_PADDING_UNIT:
        raise EOFError(f"{padding} zero bytes follow a stream; allowed: a multiple of {_XZ_PADDING_UNIT}")
    return rest
