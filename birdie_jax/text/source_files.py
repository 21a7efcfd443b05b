"""The files of a source: their recorded state, and a check on reading that it has not changed."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from birdie_jax.errors import DataError
from birdie_jax.storage import is_remote
from birdie_jax.text.locations import Location
from birdie_jax.text.regular_files import check_regular
from birdie_jax.text.remote_files import ObjectState, open_unchanged_object


class FileState(NamedTuple):
    """The state of a file in the file system; if two states differ, the contents may differ.

    The system sets the time of the last change at every write, even if the write keeps the size or the
    modification time is set back afterwards.

    Attributes:
        size: the number of its bytes.
        modified_ns: the time of its last modification, in nanoseconds.
        changed_ns: the time of the last change of its contents or attributes, in nanoseconds.
        inode: the number of the file in its file system.
        device: the number of the file system.
    """

    size: int
    modified_ns: int
    changed_ns: int
    inode: int
    device: int


@dataclass(frozen=True)
class SourceFile:
    """A file that was read: its path, state and contents.

    Attributes:
        path: its absolute path without links, or its URL.
        bytes: the number of its bytes, as stored.
        modified_ns: the time of its last modification, in ns; 0 in a bucket.
        changed_ns: the time of the last change of its contents or attributes, in ns; 0 in a bucket.
        sha256: the SHA-256 of its contents, as stored; in a bucket, of the object's size and checksum.
    """

    path: str
    bytes: int
    modified_ns: int
    changed_ns: int
    sha256: str

    def is_at(self, path: Location, state: FileState | ObjectState) -> bool:
        """Return whether the path and the state are unchanged; the contents are not read.

        Inode and device are ignored, because some network file systems renumber them at each mount.
        """
        if isinstance(state, ObjectState):
            return (str(path), state.contents_sha256) == (self.path, self.sha256)
        found = (os.path.realpath(path), *state[:3])
        return found == (self.path, self.bytes, self.modified_ns, self.changed_ns)


def find_state(path: Path) -> FileState:
    """Return the state of a regular file.

    Raises:
        DataError: the file cannot be read, or is not a regular file.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    check_regular(path, status)
    return _state_of(status)


def real_path(path: Location) -> str:
    """Return an absolute path without links, or a URL."""
    return str(path) if is_remote(path) else os.path.realpath(path)


@contextmanager
def open_unchanged(path: Location, expected: FileState | ObjectState) -> Iterator[BufferedReader]:
    """Open a file and check that its state is `expected` at the start and at the end of the `with`.

    Raises:
        DataError: the file cannot be read, or was written to, replaced, truncated or extended.
    """
    if isinstance(expected, ObjectState):
        with open_unchanged_object(path, expected) as file:
            yield file
        return
    path = Path(path)
    _check_unchanged(path, find_state(path), expected)
    try:
        with path.open("rb") as file:
            try:
                _check_unchanged(path, _state_of(os.fstat(file.fileno())), expected)
                yield file
            except DataError as error:
                # A file that is being written looks damaged; report the change, which the user can fix.
                _check_unchanged(path, _state_of(os.fstat(file.fileno())), expected, error)
                raise
            _check_unchanged(path, _state_of(os.fstat(file.fileno())), expected)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def hash_file(path: Location, file: BufferedReader, state: FileState | ObjectState) -> SourceFile:
    """Return the entry of an open file; a local file is read to the end and rewound."""
    if isinstance(state, ObjectState):
        return SourceFile(str(path), state.size, 0, 0, sha256=state.contents_sha256)
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    return SourceFile(os.path.realpath(path), *state[:3], sha256=digest)


def _state_of(status: os.stat_result) -> FileState:
    return FileState(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)


def _check_unchanged(
    path: Path, found: FileState, expected: FileState, cause: DataError | None = None
) -> None:
    if found == expected:
        return
    if found.size != expected.size:
        change = f"it had {expected.size} bytes and has {found.size}"
    elif (found.inode, found.device) != (expected.inode, expected.device):
        change = "another file is in its place"
    else:
        change = "it was written to"
    raise DataError(
        f"{path}: changed while the source was read: {change}; run the same command again once nothing "
        "writes to the source"
    ) from cause
