"""The rows of a file of tab-separated values, every bad one of them collected and named by its line.

As GLUE's files are published: no quotation marks, no escapes; a line is a row, and a tab ends a column.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from etils import epath

from birdie_jax.storage import shown
from birdie_jax.tasks.records import BYTE_ORDER_MARK, decode_line, read_contents, refuse_bad
from birdie_jax.text import DataError

_Parsed = TypeVar("_Parsed")

# (the columns of a row by their names, its place for messages) -> what they mean
ParseRow = Callable[[Mapping[str, str], str], _Parsed]


def read_tsv(
    path: epath.PathLike,
    parse: ParseRow[_Parsed],
    needed: Sequence[str],
    *,
    columns: Sequence[str] = (),
    skip_bad: bool = False,
) -> tuple[list[_Parsed], list[str]]:
    """Return the rows of a file, in order.

    Args:
        path: the file, or its URL; also compressed, as `.tsv.gz`.
        parse: a function from the columns of a row, and its place (`dev.tsv: line 3`), to what is returned
            for it. It raises DataError, with that place, for a bad one.
        needed: the names of the columns that `parse` reads.
        columns: the names of all columns, of a file whose first line is a row; none: the first line has
            them.
        skip_bad: whether bad rows are passed over.

    Returns:
        What `parse` made of each good row; and a line for each bad one that was passed over.

    Raises:
        DataError: the file cannot be read or has no row, or lacks a needed column; or rows are bad, and
            `skip_bad` is false or no good one is left. The message names the first bad ones by their lines,
            and counts all.
    """
    # Of the bytes that end lines elsewhere, and of Unicode's, some stand within GLUE's sentences.
    lines = read_contents(path).removeprefix(BYTE_ORDER_MARK).split(b"\n")
    if not lines[-1]:
        lines.pop()
    begin = 0
    if not columns and lines:
        begin, columns = 1, _cells(lines[0], f"{path}: line 1")
        _check_header(columns, needed, f"{path}: line 1")
    rows: list[_Parsed] = []
    refused: list[str] = []
    for number, line in enumerate(lines[begin:], start=begin + 1):
        where = f"{path}: line {number}"
        try:
            cells = _cells(line, where)
            if len(cells) != len(columns):
                raise DataError(
                    f"{where}: found {len(cells)} columns; allowed: {len(columns)}: {', '.join(columns)}"
                )
            rows.append(parse(dict(zip(columns, cells, strict=True)), where))
        except DataError as error:
            refused.append(str(error))
    if not rows and not refused:
        raise DataError(f"{path}: holds no row; allowed: one a line, its columns between tabs")
    refuse_bad(path, refused, len(rows), skip_bad=skip_bad)
    return rows, refused


def _cells(line: bytes, where: str) -> list[str]:
    return decode_line(line.removesuffix(b"\r"), where).split("\t")


def _check_header(columns: Sequence[str], needed: Sequence[str], where: str) -> None:
    for name in needed:
        if columns.count(name) != 1:
            found = "no column" if name not in columns else f"{columns.count(name)} columns"
            raise DataError(
                f"{where}: has {found} {shown(name)}; its columns are {shown(list(columns), 200)}; "
                f"allowed: {', '.join(needed)}, each once"
            )
