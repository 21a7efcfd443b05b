"""Guards a prepared folder: if two preparations write to the same folder in a bucket, one of them stops.

A folder on a disk is locked instead (`preparation.py`). In Cloud Storage, the process that wrote the
manifest last owns the folder. A process that starts or resumes replaces the manifest, and the previous
owner notices at its next write. If the previous owner checked just before the takeover, the store rejects
its write: a process replaces an object only at the generation that the object had before the check. So no
process overwrites files of the owner. For other stores, a process only reads the manifest before each
write: this detects a second writer, unless both write at the same time.
"""

import os
from collections.abc import Container
from pathlib import Path

from birdie_jax.errors import OvertakenError
from birdie_jax.storage import is_remote, read_bytes
from birdie_jax.storage.files import upload
from birdie_jax.storage.generations import find_generation, list_generations, remove_at, replace_at
from birdie_jax.text.locations import Location
from birdie_jax.text.manifest import MANIFEST_NAME, Manifest
from birdie_jax.text.saving import os_errors_as_data_errors, save_file
from birdie_jax.text.shard_writer import SHARD_FILE


class ManifestGuard:
    """Writes the files of one folder, and stops if another process starts to write them."""

    def __init__(self, directory: Location):
        """Record the state of the manifest; read the manifest after this, to detect every later change.

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
                self._generation = find_generation(self._path)
            else:
                self._contents = _read_or_none(self._path)

    def take_over(self, manifest: Manifest) -> None:
        """Become the owner of a folder with this manifest; remove files that earlier owners left behind.

        Shards that the manifest does not name belong to a preparation that was killed, or to one that still
        runs and will stop before it names them.

        Raises:
            OvertakenError: another preparation has started meanwhile.
            DataError: the store does not answer.
        """
        if self._is_guarded_by_store():
            self.save(manifest)
            self.remove_shards_except({shard.name for shard in (*manifest.train, *manifest.validation)})

    def check(self) -> None:
        """Check that no other process has replaced the manifest.

        Raises:
            OvertakenError: another preparation has replaced it.
            DataError: the store does not answer.
        """
        if not is_remote(self._directory):
            return
        with os_errors_as_data_errors(f"{self._path}: cannot be read"):
            if self._is_guarded_by_store():
                unchanged = find_generation(self._path) == self._generation
            else:
                unchanged = _read_or_none(self._path) == self._contents
        if not unchanged:
            raise self._lost()

    def save(self, manifest: Manifest) -> None:
        """Replace the manifest.

        Raises:
            OvertakenError: another preparation has replaced the manifest; its version is kept.
            DataError: the manifest cannot be written; the old one is kept.
        """
        contents = manifest.to_json()
        if self._is_guarded_by_store():
            with os_errors_as_data_errors(f"{self._path}: cannot be written"):
                generation = replace_at(self._path, self._generation, contents)
            if generation is None:
                raise self._lost()
            self._generation = generation
        else:
            self.check()
            save_file(self._path, contents)
        self._contents = contents

    def write(self, path: Location, contents: bytes | Path, then: str = "") -> None:
        """Write another file of the folder, or copy a local file to it, atomically.

        Args:
            path: the file.
            contents: its contents, or the path of a local file to copy.
            then: the end of an error message.

        Raises:
            OvertakenError: another preparation has taken over.
            DataError: the file cannot be written.
        """
        if not self._is_guarded_by_store():
            self.check()
            if isinstance(contents, bytes):
                save_file(path, contents)
                return
            with os_errors_as_data_errors(f"{path}: cannot be written", then):
                upload(contents, path)
            return
        written = None
        while written is None:
            with os_errors_as_data_errors(f"{path}: cannot be written", then):
                generation = find_generation(path)
            # Check after reading the generation: later writes of another owner change the generation.
            self.check()
            with os_errors_as_data_errors(f"{path}: cannot be written", then):
                written = replace_at(path, generation, contents)

    def remove_shards_except(self, named: Container[str]) -> None:
        """Remove the shards that are not in `named`; do nothing if the store cannot guard the folder.

        Raises:
            OvertakenError: another preparation has taken over.
            DataError: the store does not answer.
        """
        if not self._is_guarded_by_store():
            return
        what = f"{self._directory}: shards that {MANIFEST_NAME} does not name cannot be removed"
        with os_errors_as_data_errors(what):
            found = list_generations(self._directory)
            self.check()
            for name, generation in found.items():
                if SHARD_FILE.fullmatch(name) and name not in named:
                    remove_at(self._directory / name, generation)

    def _is_guarded_by_store(self) -> bool:
        return os.fspath(self._directory).startswith("gs://")

    def _lost(self) -> OvertakenError:
        return OvertakenError(f"{self._path}: another prepare_data is writing there, and this one stops")


def _read_or_none(path: Location) -> bytes | None:
    try:
        return read_bytes(path)
    except FileNotFoundError:
        return None
