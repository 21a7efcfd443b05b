"""The file of a lease: created by one of several that try, and replaced only by who knows what it holds."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

from etils import epath

from birdie_jax.errors import StoreError
from birdie_jax.storage import create_whole, is_remote, read_bytes, write_whole
from birdie_jax.storage.object_store import REQUEST_SECONDS, store_errors


class Version(NamedTuple):
    """What a lease's file holds.

    Attributes:
        contents: its bytes.
        mark: what tells this version from any other; only `replace` and `remove` read it.
    """

    contents: bytes
    mark: Any


@runtime_checkable
class LeaseFile(Protocol):
    """A file that several programs create and replace, one of them at a time.

    Attributes:
        renewal_seconds: the seconds between two renewals by the holder.
        expiry_seconds: the seconds after which a lease that was not renewed is taken to be left behind.
    """

    renewal_seconds: float
    expiry_seconds: float

    def create(self, contents: bytes) -> Version | None:
        """Return the new version, or None if there is a file already."""
        ...

    def read(self) -> Version | None:
        """Return what is there, or None if there is no file."""
        ...

    def replace(self, before: Version, contents: bytes) -> Version | None:
        """Return the new version, or None if what is there is no longer `before`."""
        ...

    def give_up(self, before: Version) -> None:
        """Let the next one that tries have it, if what is there is still `before`."""
        ...


def lease_file(path: epath.Path) -> LeaseFile:
    """Return the file of a lease, on a disk or in a bucket."""
    return ObjectLeaseFile(path) if is_remote(path) else LocalLeaseFile(path)


class LocalLeaseFile:
    """A `LeaseFile` in a folder: a lock on the folder keeps others out where its file system can."""

    renewal_seconds = 3.0
    expiry_seconds = 15.0

    def __init__(self, path: epath.Path):
        """Name the file, in a folder that exists."""
        self._path = path

    def create(self, contents: bytes) -> Version | None:
        """Write the file if there is none; see `LeaseFile`."""
        return Version(contents, None) if create_whole(self._path, contents) else None

    def read(self) -> Version | None:
        """Return what is there; see `LeaseFile`."""
        try:
            return Version(self._path.read_bytes(), None)
        except FileNotFoundError:
            return None

    def replace(self, before: Version, contents: bytes) -> Version | None:
        """Write the file if it is still `before`; see `LeaseFile`."""
        with self._only_one():
            # One that was removed by hand is made again, while there is the folder.
            if self.read() not in (before, None):
                return None
            write_whole(self._path, contents)
        return Version(contents, None)

    def give_up(self, before: Version) -> None:
        """Let the next one have it; see `LeaseFile`."""
        with contextlib.suppress(FileNotFoundError), self._only_one():
            if self.read() == before:
                self._path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _only_one(self) -> Iterator[None]:
        """Keep other processes of this machine, and of others where the file system can, out of a block.

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
    """A `LeaseFile` in a bucket: an object is replaced only at the generation that was read of it.

    A lease that is given up stays as an object that says so: every change is a conditional write.
    """

    # An object may be written once a second, and another host's view of it may be some seconds old.
    renewal_seconds = 10.0
    expiry_seconds = 60.0

    def __init__(self, path: epath.Path):
        """Name the object, and make a client for its bucket."""
        # Only here, since it comes with an extra.
        from google.cloud import storage

        self._path = path
        bucket, _, self._name = os.fspath(path).removeprefix("gs://").partition("/")
        with store_errors(path, "opened"):
            self._bucket = storage.Client().bucket(bucket)

    def create(self, contents: bytes) -> Version | None:
        """Write the file if there is none; see `LeaseFile`."""
        return self._write(contents, 0)

    def read(self) -> Version | None:
        """Return what is there; see `LeaseFile`."""
        with store_errors(self._path, "read"):
            # Contents and generation of one version: what changes in between is read again.
            while True:
                blob = self._bucket.get_blob(self._name, timeout=REQUEST_SECONDS)
                if blob is None:
                    return None
                contents = read_bytes(self._path)
                again = self._bucket.get_blob(self._name, timeout=REQUEST_SECONDS)
                if again is not None and again.generation == blob.generation:
                    return Version(contents, blob.generation)
                time.sleep(0.1)

    def replace(self, before: Version, contents: bytes) -> Version | None:
        """Write the file if it is still `before`; see `LeaseFile`."""
        return self._write(contents, before.mark)

    def give_up(self, before: Version) -> None:
        """Let the next one have it; see `LeaseFile`."""
        self._write(b'{"released": true}\n', before.mark)

    def _write(self, contents: bytes, generation: int) -> Version | None:
        from google.api_core.exceptions import NotFound, PreconditionFailed
        from google.cloud.storage.retry import DEFAULT_RETRY

        blob = self._bucket.blob(self._name)
        try:
            with store_errors(self._path, "written"):
                blob.upload_from_string(
                    contents,
                    if_generation_match=generation,
                    timeout=REQUEST_SECONDS,
                    retry=DEFAULT_RETRY.with_timeout(3 * REQUEST_SECONDS),
                )
        except StoreError as error:
            if isinstance(error.__cause__, PreconditionFailed):
                return None
            if isinstance(error.__cause__, NotFound):
                message = f"cannot be written: there is no bucket {self._bucket.name}"
                raise StoreError(error.errno, message, str(self._path)) from error
            raise
        return Version(contents, blob.generation)
