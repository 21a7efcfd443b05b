"""Files read as bytes, decompressed by their suffix, in constant memory."""

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path

import zstandard

from birdie_jax.text.errors import DataError

COMPRESSIONS = (".gz", ".xz", ".zst")

_CHUNK_BYTES = 1 << 18
# The Pile's frames name windows of up to this size; zstandard refuses more than 128 MiB unless told.
_MAX_WINDOW_BYTES = 1 << 31


class _ZstandardReader(io.RawIOBase):
    """The decompressed bytes of all frames of a .zst file.

    `zstandard`'s own reader takes a file that was cut short for one that ends; this one raises EOFError.
    """

    def __init__(self, compressed: BufferedIOBase):
        super().__init__()
        self._compressed = compressed
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        self._frame = self._decompressor.decompressobj()
        self._frame_begun = False
        self._pending = memoryview(b"")
        self._unused = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._pending:
            compressed = self._unused or self._compressed.read(_CHUNK_BYTES)
            self._unused = b""
            if not compressed:
                if self._frame_begun:
                    raise EOFError("compressed file ended before its end-of-frame marker")
                return 0
            self._pending = memoryview(self._frame.decompress(compressed))
            self._frame_begun = True
            if self._frame.eof:
                self._unused = self._frame.unused_data
                self._frame = self._decompressor.decompressobj()
                self._frame_begun = False
        count = min(len(buffer), len(self._pending))
        buffer[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        return count


@contextmanager
def open_decompressed(path: Path) -> Iterator[tuple[BufferedIOBase, BufferedIOBase]]:
    """Open `path`; give its decompressed bytes, and the file itself, whose `tell()` says how far it is.

    Whatever the suffix (`COMPRESSIONS`, or any other for a plain file), faults met while the file is read
    inside the `with` are reported alike.

    Raises:
        DataError: the file cannot be opened or read, or its compressed data is corrupt or cut short.
    """
    try:
        with path.open("rb") as file:
            yield _decompress(path.suffix, file), file
    except EOFError as error:
        raise DataError(f"{path}: is truncated: {error}") from error
    except (lzma.LZMAError, zlib.error, zstandard.ZstdError, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: is not valid {path.suffix} data: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _decompress(suffix: str, file: io.BufferedReader) -> BufferedIOBase:
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=file)
    if suffix == ".xz":
        return lzma.LZMAFile(file)
    if suffix == ".zst":
        return io.BufferedReader(_ZstandardReader(file), buffer_size=_CHUNK_BYTES)
    return file
