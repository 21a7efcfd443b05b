"""Files read as bytes, decompressed by their suffix, piece by piece; damage never looks like the end.

A compressed file is one or more whole streams and the padding that its format allows. `gzip` raises for
anything else. `_read_streams` is our own, because `lzma.open` stops without an error where other data
follows a stream, and zstandard's reader across frames does so where a frame is cut.
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

# Small enough that its decompressed contents fit in memory, however dense they are.
_INPUT_BYTES = 1 << 14
_OUTPUT_BYTES = 1 << 17
# The Pile's frames name windows of up to this size; zstandard refuses more than 128 MiB by default.
_MAX_WINDOW_BYTES = 1 << 31
_XZ_PADDING_UNIT = 4

COMPRESSIONS = (".gz", ".xz", ".zst")


@contextmanager
def decompressed(path: Location, file: BufferedReader) -> Iterator[BufferedIOBase]:
    """Open the decompressed bytes of `file`; its position, `file.tell()`, counts compressed bytes.

    Whatever the suffix of `path` (`COMPRESSIONS`, or any other for a plain file), faults met while the file
    is read inside the `with` are reported alike.

    Raises:
        DataError: the file cannot be read, or its compressed data is corrupt, cut short or followed by
            something else.
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
    """Bytes that come in chunks of any sizes, as a file."""

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

    Raises EOFError where the file ends within a stream, and what the decompressor raises where something
    else than a stream or padding is found.
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
    """Pass over the zero bytes after a stream of .xz; return what was read beyond them."""
    padding = 0
    while fed and not fed.strip(b"\0"):
        padding += len(fed)
        fed = file.read(_INPUT_BYTES)
    rest = fed.lstrip(b"\0")
    padding += len(fed) - len(rest)
    if padding % _XZ_PADDING_UNIT:
        raise EOFError(f"{padding} zero bytes follow a stream; allowed: a multiple of {_XZ_PADDING_UNIT}")
    return rest
