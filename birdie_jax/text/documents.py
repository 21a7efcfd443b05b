"""Documents of one file: text files, JSON lines, Parquet and WebDataset tars, streamed in constant memory.

pyarrow reads the Parquet files. It does not read the JSON lines: its errors do not name the line, and it
rejects a file if any field has a number in one record and a string in another.
"""

import json
import os
from collections.abc import Callable, Iterator
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet

from birdie_jax.errors import DataError, StoreError, shown
from birdie_jax.storage.json_text import UnusableJson, parse_json
from birdie_jax.text.decompression import COMPRESSIONS, decompressed
from birdie_jax.text.locations import Location
from birdie_jax.text.record_rules import DocumentRules, find_field
from birdie_jax.text.tar_samples import read_samples

TEXT_SUFFIXES = (".txt", ".md", ".py")
JSON_LINES_SUFFIX = ".jsonl"
PARQUET_SUFFIX = ".parquet"
TAR_SUFFIX = ".tar"

# A larger text file is read as several documents, so memory does not grow with it.
TEXT_PART_BYTES = 4 << 20
MAX_LINE_BYTES = 256 << 20
_PARQUET_ROWS = 64
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Document(NamedTuple):
    """One document of a source.

    Attributes:
        text: the text; may be empty or all white space.
        file: the file it comes from.
        number: its number within the file, from 0: the line of JSON lines, the row of Parquet, the sample
            of a tar, or the part of a text file with separators or larger than `TEXT_PART_BYTES`.
    """

    text: str
    file: Location
    number: int


class ReadDocument(NamedTuple):
    """A document and the position of the reader after it.

    Attributes:
        document: the document.
        bytes_read: the bytes of its file, as stored, that were read so far.
        is_kept: whether its record satisfies the filter.
    """

    document: Document
    bytes_read: int
    is_kept: bool


Read = Callable[[BufferedReader, Location, DocumentRules, int], Iterator[ReadDocument]]


def find_reader(path: Location) -> Read | None:
    """Return the function `read(file, path, rules, start)` for a suffix, or None if it is not supported.

    `file` is the open file. `start` is the number of the first document to yield; earlier documents are
    skipped without parsing them.
    """
    if path.suffix == PARQUET_SUFFIX:
        return _read_parquet
    bare = Path(path.stem) if path.suffix in COMPRESSIONS else path
    if bare.suffix == JSON_LINES_SUFFIX:
        return _read_json_lines
    if bare.suffix == TAR_SUFFIX:
        return _read_tar
    return _read_text if bare.suffix in TEXT_SUFFIXES else None


def supported_suffixes() -> str:
    """Return the suffixes that `find_reader` supports, for messages."""
    lines = ", ".join((*TEXT_SUFFIXES, JSON_LINES_SUFFIX, TAR_SUFFIX))
    return f"{lines} (each also with {', '.join(COMPRESSIONS)}), {PARQUET_SUFFIX}"


def decode_utf8(contents: bytes, path: Location, place: str, offset: int = 0) -> str:
    """Return UTF-8 `contents` as text.

    Args:
        contents: the bytes of `path`.
        path: the file, named in the error.
        place: the location within the file for the message, such as `"line 3, "`; may be empty.
        offset: the offset of `contents` within the (decompressed) file.

    Raises:
        DataError: the bytes are not UTF-8; names the file, place, byte and offset.
    """
    try:
        return contents.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: {place}byte {offset + error.start}: is not UTF-8 "
            f"(found 0x{contents[error.start]:02x}: {error.reason})"
        ) from error


def _read_text(
    file: BufferedReader, path: Location, rules: DocumentRules, start: int
) -> Iterator[ReadDocument]:
    """Yield a text file as one document, or split at the separator or, if it is large, at line ends."""
    with decompressed(path, file) as contents:
        divided = _divide(contents, rules.separator.encode(), path) if rules.separator else _cut(contents)
        offset = 0
        for number, (part, gap) in enumerate(divided):
            if number >= start:
                text = decode_utf8(_strip_byte_order_mark(part, offset), path, "", offset)
                is_kept = rules.is_kept({rules.text_field: text}, f"{path}: document {number}")
                yield ReadDocument(Document(text, path, number), file.tell(), is_kept)
            offset += len(part) + gap


def _cut(contents: BufferedIOBase) -> Iterator[tuple[bytes, int]]:
    """Yield parts of a text that end at line ends, each with 0, the number of bytes after the part."""
    carried, number, ended = b"", 0, False
    while not ended:
        fresh = contents.read(TEXT_PART_BYTES)
        ended = len(fresh) < TEXT_PART_BYTES
        part = carried + fresh
        end = len(part) if ended else _find_line_end(part)
        carried = part[end:]
        if end or number == 0:
            yield part[:end], 0
            number += 1


def _divide(contents: BufferedIOBase, separator: bytes, path: Location) -> Iterator[tuple[bytes, int]]:
    """Yield the parts between separators, each with the number of separator bytes after the part."""
    pending, searched, number = bytearray(), 0, 0
    while fresh := contents.read(TEXT_PART_BYTES):
        pending += fresh
        while (end := pending.find(separator, searched)) >= 0:
            yield bytes(pending[:end]), len(separator)
            del pending[: end + len(separator)]
            searched, number = 0, number + 1
        searched = max(0, len(pending) - len(separator) + 1)
        if len(pending) > MAX_LINE_BYTES:
            raise DataError(
                f"{path}: document {number}: is longer than {MAX_LINE_BYTES} bytes; allowed: the separator "
                f"{shown(separator.decode())} before that"
            )
    if pending:
        yield bytes(pending), 0


def _find_line_end(part: bytes) -> int:
    """Return the cut: after the last line end of the second half, else before the last character."""
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
    file: BufferedReader, path: Location, rules: DocumentRules, start: int
) -> Iterator[ReadDocument]:
    """Yield the named field of each line's JSON object; a blank line is an empty document."""
    with decompressed(path, file) as contents:
        offset, number = 0, 0
        while line := contents.readline(MAX_LINE_BYTES + 1):
            if len(line) > MAX_LINE_BYTES:
                raise DataError(
                    f"{path}: line {number + 1}: is longer than {MAX_LINE_BYTES} bytes; "
                    "allowed: one JSON object a line"
                )
            if number >= start:
                place = f"line {number + 1}"
                text, is_kept = "", True
                if line.strip():
                    stripped = _strip_byte_order_mark(line, offset)
                    record = parse_record(stripped, path, place, offset)
                    text, is_kept = use_record(record, rules, path, place)
                yield ReadDocument(Document(text, path, number), file.tell(), is_kept)
            offset += len(line)
            number += 1


def _read_tar(
    file: BufferedReader, path: Location, rules: DocumentRules, start: int
) -> Iterator[ReadDocument]:
    """Yield the text of each sample of a WebDataset: its .txt, or the named field of its .json."""
    with decompressed(path, file) as contents:
        for number, (name, members) in enumerate(read_samples(contents, path, ("txt", "json"))):
            if number < start:
                continue
            place = f"sample {shown(name)}"
            if not members:
                raise DataError(
                    f"{path}: {place}: has neither a .txt nor a .json; allowed: at least one of them"
                )
            record: dict[str, Any] = {}
            if "json" in members:
                record = parse_record(members["json"], path, f"{place}: .json", 0)
            if "txt" in members:
                text = decode_utf8(_strip_byte_order_mark(members["txt"], 0), path, f"{place}: .txt, ")
                record = record | {rules.text_field: text}
            text, is_kept = use_record(record, rules, path, place)
            yield ReadDocument(Document(text, path, number), file.tell(), is_kept)


def parse_record(contents: bytes, path: Location, place: str, offset: int) -> dict[str, Any]:
    """Return the JSON object at a place of a file.

    Raises:
        DataError: there is no valid JSON object.
    """
    try:
        record = _load_json(decode_utf8(contents, path, f"{place}, ", offset))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: {place}: is not JSON: {error.msg} (character {error.pos})") from error
    except UnusableJson as error:
        raise DataError(f"{path}: {place}: {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{path}: {place}: is a JSON {type(record).__name__}; allowed: an object")
    return record


def use_record(
    record: dict[str, Any], rules: DocumentRules, path: Location, place: str
) -> tuple[str, bool]:
    """Return the text of a record and true, or "" and false if the filter leaves the record out.

    Raises:
        DataError: the record lacks a field, or a field has the wrong type.
    """
    where = f"{path}: {place}"
    # First, so a filter can leave out records without a usable text.
    if not rules.is_kept(record, where):
        return "", False
    text = find_field(record, rules.text_field, where)
    return _check_text(text, path, f"{place}: field {shown(rules.text_field)}"), True


def _load_json(text: str) -> Any:
    try:
        return parse_json(text)
    except (json.JSONDecodeError, UnusableJson):
        raise
    except ValueError:
        # JSON allows integers of thousands of digits and Python refuses them; filters see infinity.
        return parse_json(text, parse_int=float)


def _check_text(value: Any, path: Location, place: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{path}: {place} is a {type(value).__name__}; allowed: a string")
    # JSON can escape half of a surrogate pair, which is not Unicode text and has no UTF-8.
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{path}: {place} holds the lone surrogate {value[error.start]!a} "
                f"at character {error.start}; allowed: Unicode text"
            ) from error
    return value


def _read_parquet(
    file: BufferedReader, path: Location, rules: DocumentRules, start: int
) -> Iterator[ReadDocument]:
    """Yield the named column, one row group at a time; groups that end before `start` are not read."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(
            file, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True
        ) as table:
            _check_columns(table.schema_arrow.names, rules, path)
            groups, total = [], table.metadata.num_rows
            for group in range(table.num_row_groups):
                rows = table.metadata.row_group(group).num_rows
                if not groups and number + rows <= start:
                    number += rows
                else:
                    groups.append(group)
            for batch in table.iter_batches(_PARQUET_ROWS, row_groups=groups, columns=list(rules.fields)):
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                for row in range(batch.num_rows):
                    if number >= start:
                        place = f"row {number}"
                        record = {
                            name: _parse_value(column[row], path, f"{place}: field {shown(name)}")
                            for name, column in columns.items()
                        }
                        text, is_kept = use_record(record, rules, path, place)
                        done = size * (number + 1) // max(total, 1)
                        yield ReadDocument(Document(text, path, number), done, is_kept)
                    number += 1
            if number != total:
                raise DataError(f"{path}: has {number} rows; its own metadata says {total}")
    except (DataError, StoreError):
        raise
    # pyarrow raises any of these for invalid metadata.
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, IndexError) as error:
        raise DataError(f"{path}: row {number}: is not readable Parquet: {error}") from error


def _check_columns(names: list[str], rules: DocumentRules, path: Location) -> None:
    for field in rules.fields:
        # In a dotted path, the first part names the column and the rest a field inside it.
        column = field if field in names else field.partition(".")[0]
        if column not in names:
            raise DataError(f"{path}: has no column {shown(field)}; its columns are {shown(sorted(names))}")
        if (count := names.count(column)) > 1:
            raise DataError(f"{path}: has the column {shown(column)} {count} times; allowed: once")


def _parse_value(value: pyarrow.Scalar, path: Location, place: str) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: {place}: byte {error.start}: is not UTF-8 ({error.reason})") from error
