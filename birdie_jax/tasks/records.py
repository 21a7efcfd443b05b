"""The records of a task's file: JSONL, every bad line of it collected and named.

pyarrow.json does not read them: one bad line fails its whole file, as does a field that holds a number in
one record and a text in another.
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

# (the fields of a record, its place for messages) -> its meaning
ParseRecord = Callable[[Mapping[str, Any], str], _Parsed]

# The setting of a task that names its file.
DataPath = Annotated[str, Line(at_most=4096, not_empty=True)]

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""The mark before the text of some UTF-8 files; it is not part of the text."""

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
        path: the file, or its URL; also compressed: `.jsonl.gz`, `.jsonl.xz`, `.jsonl.zst`.
        parse: a function from the fields of a record, and its place (`questions.jsonl: line 3`), to what is
            returned for it. It raises DataError, with that place, for a bad one; `read_field` does.
        skip_bad: whether to skip bad records.
        name_of: a function that gives the name of what `parse` returned; a record whose name an earlier one
            has is bad. None: records have no names.

    Returns:
        The result of `parse` for each good record; and a line for each skipped bad one.

    Raises:
        DataError: the file cannot be read or holds no record; or records are bad, and `skip_bad` is false
            or no good one is left. The message names the first bad ones by their lines, and counts all.
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
    """Refuse a file with bad records, unless `skip_bad` is set and some are good.

    Args:
        path: the file.
        refused: a line for each bad record.
        good: the number of good records.
        skip_bad: whether to skip bad records.

    Raises:
        DataError: names the first bad records, and counts all.
    """
    if not refused or (skip_bad and good):
        return
    more = f"; and {len(refused) - _SHOWN_RECORDS:,} more" if len(refused) > _SHOWN_RECORDS else ""
    # The file is named once.
    first = [line.removeprefix(f"{path}: ") for line in refused[:_SHOWN_RECORDS]]
    raise DataError(
        f"{path}: {len(refused):,} of {len(refused) + good:,} records are bad: {'; '.join(first)}{more}"
    )


def read_field(
    record: Mapping[str, Any], name: str, kind: Any, where: str, default: Any = _NO_DEFAULT
) -> Any:
    """Return the field `name` of a record as `kind`, a type that `parse_typed` knows.

    Args:
        record: the fields of the record.
        name: the name of the field.
        kind: the type that is wanted.
        where: the place of the record, for messages.
        default: the value where the field is missing or null; without it the field has to be there.

    Raises:
        DataError: the field is missing, or is not of that type.
    """
    if record.get(name) is None and default is not _NO_DEFAULT:
        return default
    if name not in record:
        raise DataError(f"{where}: has no field {shown(name)}; its fields are {shown(sorted(record))}")
    return parse_typed(kind, record[name], f"{where}: {name}", DataError)


def read_text(record: Mapping[str, Any], name: str, where: str) -> str:
    """Return the field `name` of a record: a text with more than white space.

    Raises:
        DataError: the field is missing, or is no such text.
    """
    return check_text(read_field(record, name, str, where), f"{where}: {name}")


def read_name(record: Mapping[str, Any], field: str, where: str) -> str:
    """Return the name of a record: its field `field`, a text or an integer, or else the number of its line.

    Raises:
        DataError: the field is there, and holds something else.
    """
    name = read_field(record, field, str | int, where, default=where.rpartition(" ")[2])
    return check_text(str(name), f"{where}: {field}")


def check_text(text: str, where: str) -> str:
    """Return `text`, which has to hold more than white space.

    Raises:
        DataError: it does not; names `where`.
    """
    if not text.strip():
        raise DataError(f"{where}: found {shown(text)}; allowed: text with more than white space")
    return text


def read_contents(path: epath.PathLike) -> bytes:
    """Return the bytes of a task's file, decompressed by its suffix.

    Raises:
        DataError: it is no regular file, cannot be read, or is damaged.
    """
    located = locate(path)
    try:
        stored = read_bytes(located) if is_remote(located) else read_regular(Path(located))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}") from error
    with decompressed(located, io.BufferedReader(cast(Any, io.BytesIO(stored)))) as file:
        return file.read()


def read_lines(contents: bytes, path: epath.PathLike) -> list[tuple[str, bytes]]:
    """Return the places (`dev.tsv: line 3`) and the lines of a table, without their ends.

    Of the bytes that end lines elsewhere, and of Unicode's, some are within sentences of published tables.
    """
    lines = contents.removeprefix(BYTE_ORDER_MARK).split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [
        (f"{path}: line {number}", line.removesuffix(b"\r")) for number, line in enumerate(lines, start=1)
    ]


def decode_line(line: bytes, where: str) -> str:
    """Return a line of a file as the text that it is in UTF-8.

    Raises:
        DataError: it is not; names the byte, from 0 on, behind `where`.
    """
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start}: is not UTF-8 ({error.reason})") from error


def decode_contents(contents: bytes, path: epath.PathLike) -> str:
    """Return the contents of a file as the text that they are in UTF-8, without a byte order mark.

    Raises:
        DataError: they are not; names the line, and the byte in it from 0 on.
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
    # Only an escape can give half of a character.
    if b"\\u" in line:
        check_unicode(record, where)
    return record


def check_unicode(value: Any, where: str) -> None:
    """Check that no text within a JSON value holds a lone surrogate, which is no text and has no UTF-8.

    Raises:
        DataError: one does; shows it.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        found = str(error.object)[error.start]
        raise DataError(
            f"{where}: found the lone surrogate {found!a}; allowed: whole Unicode characters"
        ) from error
