"""Writing `manifest.json` so that of two preparations that write to one bucket one stops.

A folder on a disk is locked instead (`preparation.py`). In Cloud Storage the manifest is replaced only in
the generation in which this process has read or written it, which the store itself checks. Other stores
are asked for the manifest before it is replaced: that finds a second writer, unless both write at once.
"""

import os
from typing import Any

from birdie_jax.storage import StoreError, is_remote, read_bytes
from birdie_jax.storage.object_store import file_system, store_errors
from birdie_jax.text.errors import DataError
from birdie_jax.text.locations import Location
from birdie_jax.text.manifest import MANIFEST_NAME, Manifest
from birdie_jax.text.saving import os_errors_as_data_errors

# The client tries again for so long; it is less than train.hung_seconds.
_WRITE_SECONDS = 100.0
_PRECONDITION_FAILED = 412


class ManifestGuard:
    """Replaces the manifest of one folder as long as nobody else does."""

    def __init__(self, directory: Location):
        """Note the state of the manifest; read it after this, so that a change since is noticed.

        Raises:
            DataError: the store does not answer.
        """
        self._directory = directory
        self._path = directory / MANIFEST_NAME
        self._generation = 0
        self._contents: bytes | None = None
        if not is_remote(directory):
            return
        with os_errors_as_data_errors(f"{self._path}: cannot be read"):
            if self._is_guarded_by_store():
                self._generation = _find_generation(self._path)
            else:
                self._contents = _read_or_none(self._path)

    def check(self) -> None:
        """Check that nobody has replaced the manifest, before other files are replaced.

        Raises:
            DataError: another preparation has, or the store does not answer.
        """
        if not is_remote(self._directory):
            return
        with os_errors_as_data_errors(f"{self._path}: cannot be read"):
            if self._is_guarded_by_store():
                unchanged = _find_generation(self._path) == self._generation
            else:
                unchanged = _read_or_none(self._path) == self._contents
        if not unchanged:
            raise self._lost()

    def save(self, manifest: Manifest) -> None:
        """Replace the manifest.

        Raises:
            DataError: another preparation has replaced it, or it cannot be written; the other is kept.
        """
        if not is_remote(self._directory):
            manifest.save(self._directory)
            return
        contents = manifest.to_json()
        if self._is_guarded_by_store():
            with os_errors_as_data_errors(f"{self._path}: cannot be written"):
                generation = _replace(self._path, contents, self._generation)
                if generation is None:
                    # An answer may have been lost, and the same write been tried again.
                    self._generation = _find_generation(self._path)
                    if _read_or_none(self._path) != contents:
                        raise self._lost()
                else:
                    self._generation = generation
            return
        self.check()
        manifest.save(self._directory)
        self._contents = contents

    def _is_guarded_by_store(self) -> bool:
        return os.fspath(self._directory).startswith("gs://")

    def _lost(self) -> DataError:
        return DataError(
            f"{self._path}: another prepare_data is writing there, and this one stops; let the other end"
        )


def _find_generation(path: Location) -> int:
    """Return the generation of an object of Cloud Storage; 0 if there is none."""
    try:
        with store_errors(path, "looked for"):
            return int(file_system(path).info(os.fspath(path))["generation"])
    except FileNotFoundError:
        return 0


def _read_or_none(path: Location) -> bytes | None:
    try:
        return read_bytes(path)
    except FileNotFoundError:
        return None


def _replace(path: Location, contents: bytes, generation: int) -> int | None:
    """Replace an object of Cloud Storage that has this generation; return the new one, None if it has not.

    Raises:
        StoreError: the store refuses, or does not answer.
    """
    from google.api_core.exceptions import GoogleAPICallError
    from google.cloud import storage
    from google.cloud.storage.retry import DEFAULT_RETRY

    bucket, _, name = os.fspath(path).partition("://")[2].partition("/")
    try:
        with store_errors(path, "written"):
            client: Any = storage.Client()
            blob = client.bucket(bucket).blob(name)
            blob.upload_from_string(
                contents,
                content_type="application/json",
                if_generation_match=generation,
                retry=DEFAULT_RETRY.with_timeout(_WRITE_SECONDS),
            )
    except StoreError as error:
        cause = error.__cause__
        if isinstance(cause, GoogleAPICallError) and cause.code == _PRECONDITION_FAILED:
            return None
        raise
    return int(blob.generation)
