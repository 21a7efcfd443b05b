"""The file of a lease: only one of several writers can create it, or replace a version that it has read."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

from etils import epath

from birdie_jax.storage import create_whole, is_remote, read_bytes, write_whole
from birdie_jax.storage.generations import find_generation, replace_at

# Less than the expiry time in a bucket, so a holder that cannot renew its lease notices the new holder.
_WRITE_SECONDS = 45.0


class Version(NamedTuple):
    """A version of a lease's file.

    Attributes:
        contents: its bytes.
        mark: the identity of this version; only `replace` and `give_up` read it.
    """

    contents: bytes
    mark: Any


@runtime_checkable
class LeaseFile(Protocol):
    """A file that several programs create and replace, one at a time.

    Attributes:
        renewal_seconds: the seconds between two renewals by the holder.
        expiry_seconds: the seconds after which a lease without a renewal counts as abandoned.
    """

    renewal_seconds: float
    expiry_seconds: float

    def create(self, contents: bytes) -> Version | None:
        """Return the new version, or None if the file exists already."""
        ...

    def read(self) -> Version | None:
        """Return the current version, or None if there is no file."""
        ...

    def replace(self, before: Version, contents: bytes) -> Version | None:
        """Return the new version, or None if the current one is no longer `before`."""
        ...

    def give_up(self, before: Version) -> None:
        """Release the lease for the next trainer, if the current version is still `before`."""
        ...


def lease_file(path: epath.Path) -> LeaseFile:
    """Return the file of a lease, on a disk or in a bucket."""
    return ObjectLeaseFile(path) if is_remote(path) else LocalLeaseFile(path)


class LocalLeaseFile:
    """A `LeaseFile` in a folder: a lock on the folder excludes others, if the file system supports it."""

    renewal_seconds = 3.0
    expiry_seconds = 15.0

    def __init__(self, path: epath.Path):
        """Prepare the file in an existing folder."""
        self._path = path

    def create(self, contents: bytes) -> Version | None:
        """Write the file if there is none; see `LeaseFile`."""
        return Version(contents, None) if create_whole(self._path, contents) else None

    def read(self) -> Version | None:
        """Return the current version; see `LeaseFile`."""
        try:
            return Version(self._path.read_bytes(), None)
        except FileNotFoundError:
            return None

    def replace(self, before: Version, contents: bytes) -> Version | None:
        """Write the file if it is still `before`; see `LeaseFile`."""
        with self._only_one():
            # If somebody removed the file, write it again while the folder exists.
            if self.read() not in (before, None):
                return None
            write_whole(self._path, contents)
        return Version(contents, None)

    def give_up(self, before: Version) -> None:
        """Release the lease; see `LeaseFile`."""
        with contextlib.suppress(FileNotFoundError), self._only_one():
            if self.read() == before:
                self._path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _only_one(self) -> Iterator[None]:
        """Exclude other processes on this machine, and on other machines if possible, from a block.

        Raises:
            FileNotFoundError: the folder of the lease is gone.
        """
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


class ObjectLeaseFile:
    """A `LeaseFile` in a bucket: an object is replaced only at the generation that was read.

    A released lease stays as an object that is marked as released, because every change is a conditional
    write.
    """

    # An object can be written once a second, and another host's view may be some seconds old.
    renewal_seconds = 10.0
    expiry_seconds = 60.0

    def __init__(self, path: epath.Path):
        """Prepare the object."""
        self._path = path

    def create(self, contents: bytes) -> Version | None:
        """Write the file if there is none; see `LeaseFile`."""
        return self._write(contents, 0)

    def read(self) -> Version | None:
        """Return the current version; see `LeaseFile`."""
        # The contents and the generation must be of the same version: read again if it changed in between.
        while generation := find_generation(self._path):
            contents = read_bytes(self._path)
            if find_generation(self._path) == generation:
                return Version(contents, generation)
            time.sleep(0.1)
        return None

    def replace(self, before: Version, contents: bytes) -> Version | None:
        """Write the file if it is still `before`; see `LeaseFile`."""
        return self._write(contents, before.mark)

    def give_up(self, before: Version) -> None:
        """Release the lease; see `LeaseFile`."""
        self._write(b'{"released": true}\n', before.mark)

    def _write(self, contents: bytes, generation: int) -> Version | None:
        written = replace_at(self._path, generation, contents, _WRITE_SECONDS)
        return None if written is None else Version(contents, written)
