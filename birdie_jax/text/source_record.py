"""`source_files.jsonl`: the source files of the finished shards, one per line, in order.

A preparation uses it to detect changes of its source, when it resumes and when it is already complete. A
file with the same path, size and times counts as unchanged. The contents of any other file are hashed, so
a copy of the source is accepted, also on another machine, and an edited file is rejected. The manifest
contains the hash of all these hashes, which depends on no path and no time.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence

from birdie_jax.errors import DataError
from birdie_jax.storage import is_remote, parse_typed, read_bytes, to_plain
from birdie_jax.storage.json_text import parse_json
from birdie_jax.text.locations import Location
from birdie_jax.text.saving import os_errors_as_data_errors
from birdie_jax.text.source_files import SourceFile

SOURCE_RECORD_NAME = "source_files.jsonl"


class SourceRecord:
    """The source files that a preparation has read, and their record in its folder.

    Attributes:
        files: the files read so far; the reader of the source appends to this list.
    """

    def __init__(self, directory: Location, files: Sequence[SourceFile] = ()):
        self.files = list(files)
        self._path = directory / SOURCE_RECORD_NAME
        self._saved: int | None = None

    def save(self, count: int, write: Callable[[Location, bytes], None]) -> str:
        """Save the first `count` files in the folder; return the hash of their contents and order.

        Args:
            count: the number of files.
            write: writes a file of the folder atomically, or raises DataError.

        Raises:
            DataError: the disk or the store rejects the write.
        """
        if self._saved is None or is_remote(self._path):
            # Replace lines that a killed process wrote after its last manifest. Stores cannot append.
            write(self._path, _lines(self.files[:count]))
        else:
            what = f"{self._path}: cannot be written"
            with os_errors_as_data_errors(what), self._path.open("ab") as file:
                file.write(_lines(self.files[self._saved : count]))
                file.flush()
                os.fsync(file.fileno())
        self._saved = count
        return hash_contents(self.files[:count])


def hash_contents(files: Sequence[SourceFile]) -> str:
    """Return the hash of the contents and the order of files; it does not depend on their paths."""
    return hashlib.sha256("".join(f"{file.sha256}\n" for file in files).encode()).hexdigest()


def load_source_record(directory: Location, count: int) -> SourceRecord:
    """Return the record of the first `count` files.

    Raises:
        DataError: the record is missing, damaged or too short.
    """
    path = directory / SOURCE_RECORD_NAME
    with os_errors_as_data_errors(f"{path}: cannot be read"):
        lines = read_bytes(path).splitlines()[:count]
    if len(lines) < count:
        raise DataError(f"{path}: has {len(lines)} lines; {count} are expected; use another output folder")
    files = []
    for number, line in enumerate(lines, 1):
        where = f"{path}: line {number}"
        try:
            values = parse_json(line)
        except ValueError as error:
            raise DataError(f"{where}: is not JSON; use another output folder") from error
        files.append(parse_typed(SourceFile, values, where, DataError))
    return SourceRecord(directory, files)


def _lines(files: Sequence[SourceFile]) -> bytes:
    return "".join(json.dumps(to_plain(file)) + "\n" for file in files).encode()
