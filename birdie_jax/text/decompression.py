"""Files read as bytes, decompressed by their suffix, in constant memory; damage is never taken for the end.

The readers of Python's own modules end a file in silence where another stream should begin but something
else does, or where nothing is there at all. Here a compressed file is one or more whole streams and the
padding that its format allows.
"""

import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase, BufferedReader
from typing import Any, Protocol

import zstandard

from birdie_jax.text.errors import DataError
from birdie_jax.text.locations import Location, reason

COMPRESSIONS = (".gz", ".xz", ".zst")

_INPUT_BYTES = 1 << 18
_OUTPUT_BYTES = 1 << 17
# The Pile's frames name windows of up to this size; zstandard refuses more than 128 MiB unless told.
_MAX_WINDOW_BYTES = 1 << 31
_GZIP_FORMAT = 16 + zlib.MAX_WBITS
_XZ_PADDING_UNIT = 4


class _Stream(Protocol):
    """The decompressor of one stream (.xz), member (.gz) or frame (.zst).

    Attributes:
        needs_input: whether nothing more can be given without more compressed bytes.
        unused_data: what was fed beyond the end of the stream.
    """

    needs_input: bool

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, compressed: bytes) -> bytes: ...


class _Decompressor:
    """What the decompressors of all formats have in common.

    Attributes:
        needs_input: whether nothing more can be given without more compressed bytes.
    """

    def __init__(self, decompressor: Any):
        self._decompressor = decompressor
        self.needs_input = True

    @property
    def eof(self) -> bool:
        """Whether the end of the stream was met."""
        return self._decompressor.eof

    @property
    def unused_data(self) -> bytes:
        """What was fed beyond the end of the stream."""
        return self._decompressor.unused_data


class _GzipMember(_Decompressor):
    def __init__(self):
        super().__init__(zlib.decompressobj(_GZIP_FORMAT))

    def decompress(self, compressed: bytes) -> bytes:
        pending = self._decompressor.unconsumed_tail + compressed
        decompressed = self._decompressor.decompress(pending, _OUTPUT_BYTES)
        # A full output may leave more behind, also where all that was fed is consumed.
        self.needs_input = len(decompressed) < _OUTPUT_BYTES and not self._decompressor.unconsumed_tail
        return decompressed


class _XzStream(_Decompressor):
    def __init__(self):
        super().__init__(lzma.LZMADecompressor(lzma.FORMAT_XZ))

    def decompress(self, compressed: bytes) -> bytes:
        decompressed = self._decompressor.decompress(compressed, _OUTPUT_BYTES)
        self.needs_input = self._decompressor.needs_input
        return decompressed


class _ZstandardFrame(_Decompressor):
    def __init__(self):
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        super().__init__(decompressor.decompressobj())

    def decompress(self, compressed: bytes) -> bytes:
        return self._decompressor.decompress(compressed)


_STREAMS = {".gz": _GzipMember, ".xz": _XzStream, ".zst": _ZstandardFrame}
# Zero bytes between and after streams: any number after those of .gz, as tapes leave them.
_PADDING_UNITS = {".gz": 1, ".xz": _XZ_PADDING_UNIT, ".zst": 0}


class _Reader(io.RawIOBase):
    """The decompressed bytes of all streams of a file.

    Raises EOFError where the file ends within a stream or has none, and what the decompressor raises where
    something else than a stream or padding is found.
    """

    def __init__(self, suffix: str, compressed: BufferedReader):
        super().__init__()
        self._make_stream = _STREAMS[suffix]
        self._padding_unit = _PADDING_UNITS[suffix]
        self._compressed = compressed
        self._stream: _Stream | None = None
        self._streams = 0
        self._padding = 0
        self._fed = b""  # read, and not yet taken by a stream
        self._pending = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._pending:
            if self._stream is None and not self._begin_stream():
                return 0
            self._decompress()
        count = min(len(buffer), len(self._pending))
        buffer[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        return count

    def _begin_stream(self) -> bool:
        """Pass over padding and begin the next stream; return whether there is one."""
        while self._fed or self._feed():
            if self._streams and self._padding_unit:
                padded = len(self._fed)
                self._fed = self._fed.lstrip(b"\0")
                self._padding += padded - len(self._fed)
                if not self._fed:
                    continue
                self._check_padding()
            self._stream = self._make_stream()
            self._streams += 1
            return True
        if not self._streams:
            raise EOFError("it is empty, and no compressed file is")
        self._check_padding()
        return False

    def _check_padding(self) -> None:
        if self._padding_unit and self._padding % self._padding_unit:
            raise EOFError(
                f"{self._padding} zero bytes follow a stream, where a multiple of {self._padding_unit} may"
            )
        self._padding = 0

    def _decompress(self) -> None:
        stream = self._stream
        assert stream is not None
        if stream.needs_input and not self._fed and not self._feed():
            raise EOFError("compressed file ended before its end-of-stream marker")
        fed, self._fed = (self._fed, b"") if stream.needs_input else (b"", self._fed)
        self._pending = memoryview(stream.decompress(fed))
        if stream.eof:
            self._fed = stream.unused_data + self._fed
            self._stream = None

    def _feed(self) -> bool:
        self._fed = self._compressed.read(_INPUT_BYTES)
        return bool(self._fed)


@contextmanager
def decompressed(path: Location, file: BufferedReader) -> Iterator[BufferedIOBase]:
    """Give the decompressed bytes of `file`, whose own `tell()` says how far it is.

    Whatever the suffix of `path` (`COMPRESSIONS`, or any other for a plain file), faults met while the file
    is read inside the `with` are reported alike.

    Raises:
        DataError: the file cannot be read, or its compressed data is corrupt, cut short or followed by
            something else.
    """
    try:
        if path.suffix in COMPRESSIONS:
            yield io.BufferedReader(_Reader(path.suffix, file), buffer_size=_OUTPUT_BYTES)
        else:
            yield file
    except EOFError as error:
        raise DataError(f"{path}: is truncated or damaged: {error}") from error
    except (lzma.LZMAError, zlib.error, zstandard.ZstdError) as error:
        raise DataError(f"{path}: is not valid {path.suffix} data: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}") from error
