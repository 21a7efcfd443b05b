"""Documents of one file: text files, JSON lines and Parquet, streamed in constant memory.

pyarrow reads the Parquet files, and not the JSON lines: it counts rows within a block of its own and never
names the line, and it refuses a file whose other fields hold a number in one record and a text in another.
"""

import json
import os
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet

from birdie_jax.errors import DataError, StoreError, shown
from birdie_jax.storage.json_text import UnusableJson, parse_json
from birdie_jax.text.decompression import COMPRESSIONS, decompressed
from birdie_jax.text.locations import Location

TEXT_SUFFIXES = (".txt", ".md", ".py")
JSON_LINES_SUFFIX = ".jsonl"
PARQUET_SUFFIX = ".parquet"

# A larger text file is read as several documents, so that memory does not grow with it.
TEXT_PART_BYTES = 4 << 20
MAX_LINE_BYTES = 256 << 20
_PARQUET_ROWS = 64
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Document(NamedTuple):
    """One document of a source.

    Attributes:
        text: the text; may be empty or all white space.
        file: the file it comes from.
        number: its number within the file, from 0: the line of JSON lines, the row of Parquet, the part of
            a text file larger than `TEXT_PART_BYTES`.
    """

    text: str
    file: Location
    number: int


class ReadDocument(NamedTuple):
    """A document, and how far its file has been read.

    Attributes:
        document: the document.
        bytes_read: the bytes of its file, as stored, that had been read when it was given.
    """

    document: Document
    bytes_read: int


Read = Callable[[BufferedReader, Location, str, int], Iterator[ReadDocument]]


def find_reader(path: Location) -> Read | None:
    """Return the function `read(file, path, text_field, start)` for the suffix, or None if there is none.

    `file` is the open file, and `start` is the number of the first document to give; those before it are
    passed over unparsed.
    """
    if path.suffix == PARQUET_SUFFIX:
        return _read_parquet
    bare = Path(path.stem) if path.suffix in COMPRESSIONS else path
    if bare.suffix == JSON_LINES_SUFFIX:
        return _read_json_lines
    return _read_text if bare.suffix in TEXT_SUFFIXES else None


def supported_suffixes() -> str:
    """Return the suffixes that `find_reader` knows, for messages."""
    lines = ", ".join((*TEXT_SUFFIXES, JSON_LINES_SUFFIX))
    return f"{lines} (each also with {', '.join(COMPRESSIONS)}), {PARQUET_SUFFIX}"


def decode_utf8(contents: bytes, path: Location, place: str, offset: int = 0) -> str:
    """Return UTF-8 `contents` as text.

    Args:
        contents: the bytes of `path`.
        path: the file, named in the error.
        place: the location within the file, for people: `"line 3, "` or nothing.
        offset: the offset of `contents` within the (decompressed) file.

    Raises:
        DataError: not UTF-8; names the file, place, byte and offset.
    """
    try:
        return contents.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: {place}byte {offset + error.start}: is not UTF-8 "
            f"(found 0x{contents[error.start]:02x}: {error.reason})"
        ) from error


def _read_text(file: BufferedReader, path: Location, text_field: str, start: int) -> Iterator[ReadDocument]:
    """Give a text file as one document, or, if it is large, as parts that end at a line's end."""
    del text_field
    with decompressed(path, file) as contents:
        carried, offset, number, ended = b"", 0, 0, False
        while not ended:
            fresh = contents.read(TEXT_PART_BYTES)
            ended = len(fresh) < TEXT_PART_BYTES
            part = carried + fresh
            end = len(part) if ended else _find_line_end(part)
            carried = part[end:]
            if number >= start and (end or number == 0):
                text = decode_utf8(_strip_byte_order_mark(part[:end], offset), path, "", offset)
                yield ReadDocument(Document(text, path, number), file.tell())
            offset += end
            number += 1


def _find_line_end(part: bytes) -> int:
    """Return where to cut: after the last line end of the second half, else before the last character."""
    newline = part.rfind(b"\n", len(part) // 2) + 1
    if newline:
        return newline
    continuation_bytes = 0
    while continuation_bytes < 3 and part[-1 - continuation_bytes] & 0xC0 == 0x80:
        continuation_bytes += 1
    return len(part) - 1 - continuation_bytes


def _strip_byte_order_mark(contents: bytes, offset: int) -> bytes:
    return contents.removeprefix(_BYTE_ORDER_MARK) if offset == 0 else contents


def _read_json_lines(
    file: BufferedReader, path: Location, text_field: str, start: int
) -> Iterator[ReadDocument]:
    """Give the named field of each line's JSON object; a blank line is an empty document."""
    with decompressed(path, file) as contents:
        offset, number = 0, 0
        while line := contents.readline(MAX_LINE_BYTES + 1):
            if len(line) > MAX_LINE_BYTES:
                raise DataError(
                    f"{path}: line {number + 1}: is longer than {MAX_LINE_BYTES} bytes; "
                    "one JSON object a line is expected"
                )
            if number >= start:
                text = _parse_json_text(
                    _strip_byte_order_mark(line, offset), path, text_field, number + 1, offset
                )
                yield ReadDocument(Document(text, path, number), file.tell())
            offset += len(line)
            number += 1


def _parse_json_text(line: bytes, path: Location, text_field: str, line_number: int, offset: int) -> str:
    if not line.strip():
        return ""
    place = f"line {line_number}"
    try:
        record = _load_json(decode_utf8(line, path, f"{place}, ", offset))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: {place}: is not JSON: {error.msg} (character {error.pos})") from error
    except UnusableJson as error:
        raise DataError(f"{path}: {place}: {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{path}: {place}: is a JSON {type(record).__name__}; an object is expected")
    if text_field not in record:
        raise DataError(
            f"{path}: {place}: has no field {shown(text_field)}; its fields are {shown(sorted(record))}"
        )
    return _check_text(record[text_field], path, f"{place}: field {shown(text_field)}")


def _load_json(text: str) -> Any:
    try:
        return parse_json(text)
    except (json.JSONDecodeError, UnusableJson):
        raise
    except ValueError:
        # Python makes no integer of thousands of digits; JSON allows it, and no number here is ever used.
        return parse_json(text, parse_int=lambda _: 0)


def _check_text(value: Any, path: Location, place: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{path}: {place} is a {type(value).__name__}; a string is expected")
    # JSON can escape half of a surrogate pair, which is no text and has no UTF-8.
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{path}: {place} holds the lone surrogate {value[error.start]!a} "
                f"at character {error.start}; Unicode text is expected"
            ) from error
    return value


def _read_parquet(
    file: BufferedReader, path: Location, text_field: str, start: int
) -> Iterator[ReadDocument]:
    """Give the named column, row group by row group; groups wholly before `start` are not read."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(
            file, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True
        ) as table:
            names = table.schema_arrow.names
            if text_field not in names:
                raise DataError(
                    f"{path}: has no column {shown(text_field)}; its columns are {shown(sorted(names))}"
                )
            if (count := names.count(text_field)) > 1:
                raise DataError(f"{path}: has the column {shown(text_field)} {count} times; allowed: once")
            groups, total = [], table.metadata.num_rows
            for group in range(table.num_row_groups):
                rows = table.metadata.row_group(group).num_rows
                if not groups and number + rows <= start:
                    number += rows
                else:
                    groups.append(group)
            for batch in table.iter_batches(_PARQUET_ROWS, row_groups=groups, columns=[text_field]):
                column = batch.column(0)
                for row in range(len(column)):
                    if number >= start:
                        text = _parse_parquet_text(column[row], path, text_field, number)
                        yield ReadDocument(
                            Document(text, path, number), size * (number + 1) // max(total, 1)
                        )
                    number += 1
            if number != total:
                raise DataError(f"{path}: has {number} rows; its own metadata says {total}")
    except (DataError, StoreError):
        raise
    # What pyarrow raises for metadata that make no sense is of any of these kinds.
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, IndexError) as error:
        raise DataError(f"{path}: row {number}: is not readable Parquet: {error}") from error


def _parse_parquet_text(value: pyarrow.Scalar, path: Location, text_field: str, row: int) -> str:
    place = f"row {row}: field {shown(text_field)}"
    try:
        return _check_text(value.as_py(), path, place)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: {place}: byte {error.start}: is not UTF-8 ({error.reason})") from error
