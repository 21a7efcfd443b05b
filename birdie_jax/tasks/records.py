"""Readers of JSONL records and lines that report every bad record.

The readers do not use pyarrow.json. It fails on the whole file if one line is bad, or if a field is a
number in one record and a text in another.
"""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from etils import epath

from birdie_jax.errors import DataError, shown
from birdie_jax.storage import Line, is_remote, parse_typed, read_bytes
from birdie_jax.storage.json_text import UnusableJson, parse_json
from birdie_jax.text.decompression import decompressed
from birdie_jax.text.locations import locate, reason
from birdie_jax.text.regular_files import read_regular

_Parsed = TypeVar("_Parsed")

# (the fields of a record, the location of the record) -> the parsed record
ParseRecord = Callable[[Mapping[str, Any], str], _Parsed]

# Marks the type of a task's setting that names what the task reads; commands refuse outputs over it.
READ = "read"
DataPath = Annotated[str, Line(at_most=4096, not_empty=True), READ]
OptionalDataPath = Annotated[str, Line(at_most=4096), READ]

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""The byte order mark at the start of some UTF-8 files; it is not part of the text."""

_SHOWN_RECORDS = 5
_NO_DEFAULT = object()


def read_records(
    path: epath.PathLike,
    parse: ParseRecord[_Parsed],
    skip_bad: bool = False,
    name_of: Callable[[_Parsed], str] | None = None,
) -> tuple[list[_Parsed], list[str]]:
    """Return the records of a JSONL file, in order.

    Args:
        path: the file, or its URL; may be compressed: `.jsonl.gz`, `.jsonl.xz`, `.jsonl.zst`.
        parse: a function from the fields of a record, and the record's location (`questions.jsonl: line
            3`), to the parsed record. For a bad record it raises a DataError that names the location, as
            `read_field` does.
        skip_bad: whether to skip bad records.
        name_of: a function that returns the name of a parsed record. A record with the name of an earlier
            record is bad. None = records have no names.

    Returns:
        The parsed records, and a message for each skipped record.

    Raises:
        DataError: the file cannot be read or has no records; or records are bad, and `skip_bad` is false or
            no record is good. The message counts the bad records, and names the lines of the first.
    """
    records: list[_Parsed] = []
    refused: list[str] = []
    places: dict[str, str] = {}
    contents = read_contents(path).removeprefix(BYTE_ORDER_MARK)
    for number, line in enumerate(contents.splitlines(), start=1):
        where = f"{path}: line {number}"
        try:
            record = parse(_fields(line, where), where)
            if name_of is not None:
                name = name_of(record)
                if name in places:
                    raise DataError(
                        f"{where}: found the id {shown(name)}, which {places[name]} has; allowed: another"
                    )
                places[name] = f"line {number}"
        except DataError as error:
            refused.append(str(error))
        else:
            records.append(record)
    if not records and not refused:
        raise DataError(f"{path}: holds no record; allowed: one JSON object a line")
    refuse_bad(path, refused, len(records), skip_bad=skip_bad)
    return records, refused


def refuse_bad(path: epath.PathLike, refused: Sequence[str], good: int, *, skip_bad: bool) -> None:
    """Refuse a file with bad records, unless `skip_bad` is true and some records are good.

    Args:
        path: the file.
        refused: a message for each bad record.
        good: the number of good records.
        skip_bad: whether to skip bad records.

    Raises:
        DataError: the file is refused. The message counts the bad records, and names the first.
    """
    if not refused or (skip_bad and good):
        return
    more = f"; and {len(refused) - _SHOWN_RECORDS:,} more" if len(refused) > _SHOWN_RECORDS else ""
    # The message names the file only once.
    first = [line.removeprefix(f"{path}: ") for line in refused[:_SHOWN_RECORDS]]
    raise DataError(
        f"{path}: {len(refused):,} of {len(refused) + good:,} records are bad: {'; '.join(first)}{more}"
    )


def read_field(
    record: Mapping[str, Any], name: str, kind: Any, where: str, default: Any = _NO_DEFAULT
) -> Any:
    """Return the field `name` of a record, checked against the type `kind`.

    Args:
        record: the fields of the record.
        name: the name of the field.
        kind: a type that `parse_typed` supports.
        where: the location of the record, for error messages.
        default: the value if the field is missing or null. Without a default, the field is required.

    Raises:
        DataError: the field is missing or has another type.
    """
    if record.get(name) is None and default is not _NO_DEFAULT:
        return default
    if name not in record:
        raise DataError(f"{where}: has no field {shown(name)}; its fields are {shown(sorted(record))}")
    return parse_typed(kind, record[name], f"{where}: {name}", DataError)


def read_text(record: Mapping[str, Any], name: str, where: str) -> str:
    """Return the field `name` of a record, a text with more than white space.

    Raises:
        DataError: the field is missing, is not a text, or is empty or white space.
    """
    return check_text(read_field(record, name, str, where), f"{where}: {name}")


def read_name(record: Mapping[str, Any], field: str, where: str) -> str:
    """Return the name of a record: the field `field`, or the number of the record's line without the field.

    Raises:
        DataError: the field is neither an integer nor a text with more than white space.
    """
    name = read_field(record, field, str | int, where, default=where.rpartition(" ")[2])
    return check_text(str(name), f"{where}: {field}")


def check_text(text: str, where: str) -> str:
    """Return `text`, which must contain more than white space.

    Raises:
        DataError: the text is empty or white space. The message names `where`.
    """
    if not text.strip():
        raise DataError(f"{where}: found {shown(text)}; allowed: text with more than white space")
    return text


def read_contents(path: epath.PathLike) -> bytes:
    """Return the bytes of a task's file, decompressed according to its suffix.

    Raises:
        DataError: the file is not a regular file, cannot be read, or is damaged.
    """
    located = locate(path)
    try:
        stored = read_bytes(located) if is_remote(located) else read_regular(Path(located))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}") from error
    with decompressed(located, io.BufferedReader(cast(Any, io.BytesIO(stored)))) as file:
        return file.read()


def read_lines(contents: bytes, path: epath.PathLike) -> list[tuple[str, bytes]]:
    """Return the location (`dev.tsv: line 3`) and the bytes of each line of a table, without line ends.

    Only a line feed ends a line. Sentences of published tables contain other line breaks of Unicode.
    """
    lines = contents.removeprefix(BYTE_ORDER_MARK).split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [
        (f"{path}: line {number}", line.removesuffix(b"\r")) for number, line in enumerate(lines, start=1)
    ]


def decode_line(line: bytes, where: str) -> str:
    """Decode a line as UTF-8.

    Raises:
        DataError: the line is not UTF-8. The message names `where` and the byte, from 0.
    """
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start}: is not UTF-8 ({error.reason})") from error


def decode_contents(contents: bytes, path: epath.PathLike) -> str:
    """Decode the contents of a file as UTF-8, without a byte order mark.

    Raises:
        DataError: the contents are not UTF-8. The message names the line, and the byte in it from 0.
    """
    contents = contents.removeprefix(BYTE_ORDER_MARK)
    try:
        return contents.decode()
    except UnicodeDecodeError as error:
        number = 1 + contents.count(b"\n", 0, error.start)
        place = error.start - 1 - contents.rfind(b"\n", 0, error.start)
        raise DataError(f"{path}: line {number}: byte {place}: is not UTF-8 ({error.reason})") from error


def _fields(line: bytes, where: str) -> Mapping[str, Any]:
    if not line.strip():
        raise DataError(f"{where}: is empty; allowed: a JSON object")
    text = decode_line(line, where)
    try:
        record = parse_json(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: is not JSON: {error.msg} (character {error.pos})") from error
    except UnusableJson as error:
        raise DataError(f"{where}: {error}") from error
    except ValueError as error:  # an integer of thousands of digits
        raise DataError(f"{where}: is not JSON that can be read: {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{where}: found {shown(record)}; allowed: a JSON object")
    # Only an escape can produce a lone surrogate.
    if b"\\u" in line:
        check_unicode(record, where)
    return record


def check_unicode(value: Any, where: str) -> None:
    """Check that no text in a JSON value contains a lone surrogate, which UTF-8 cannot encode.

    Raises:
        DataError: a text contains one. The message shows it.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        found = str(error.object)[error.start]
        raise DataError(
            f"{where}: found the lone surrogate {found!a}; allowed: whole Unicode characters"
        ) from error
