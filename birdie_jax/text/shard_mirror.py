"""Copies of a bucket's token shards on the local disk, shared by all processes and by later runs.

Each text has its own folder, named after `Manifest.sha256`. A shard is copied to a temporary name, checked,
and renamed; a lock on the temporary file lets only one process at a time copy the shard. If the copies
exceed their size limit, the folders of texts that no process reads are removed, oldest first.
"""

import contextlib
import fcntl
import os
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path

from birdie_jax.errors import DataError
from birdie_jax.storage import PARTIAL_SUFFIX, publish
from birdie_jax.storage.cache_folder import cache_folder
from birdie_jax.storage.object_store import file_system, store_errors
from birdie_jax.text.array_record_file import check_records
from birdie_jax.text.locations import Location, reason
from birdie_jax.text.manifest import SPLITS, Manifest, Shard

# Every request has a time limit of some seconds, so the parts are small.
_PART_BYTES = 8 << 20
# Space to leave free on the disk.
_SPARE_BYTES = 1 << 30
_IN_USE = "in_use"


def find_obstacle(manifest: Manifest, max_bytes: int) -> str:
    """Make room for a text; return the reason why it cannot be copied to this machine, or "" if it can.

    Args:
        manifest: the text.
        max_bytes: the maximum size of all copies on this machine.
    """
    needed = sum(shard.bytes for split in SPLITS for shard in manifest.shards(split))
    if needed > max_bytes:
        return f"its {needed} bytes exceed the {max_bytes} that copies may take"
    own = _folder(manifest)
    try:
        own.mkdir(parents=True, exist_ok=True)
        _remove_unused(own, max_bytes - needed)
        there = _measure(own)
        free = shutil.disk_usage(own).free
    except OSError as error:
        return f"{own} cannot be used: {reason(error)}"
    if needed - there + _SPARE_BYTES > free:
        return f"{own} has {free} bytes free, and needs {needed - there} more"
    return ""


class ShardMirror:
    """The copies of one text, used by one process; threads may share an instance."""

    def __init__(self, directory: Location, manifest: Manifest):
        """Protect the folder of the copies from removal while this object exists.

        Raises:
            DataError: the folder cannot be created.
        """
        self._directory = directory
        self._folder = _folder(manifest)
        try:
            held = _hold(self._folder)
        except OSError as error:
            raise DataError(f"{self._folder}: cannot be made: {reason(error)}") from error
        weakref.finalize(self, os.close, held)

    def find(self, shard: Shard) -> Path | None:
        """Return the path of the copy of a shard, or None if there is no copy yet."""
        path = self._folder / shard.name
        return path if path.exists() else None

    def fetch(self, shard: Shard) -> Path:
        """Return the path of the copy of a shard; make the copy, or wait for a process that is making it.

        Raises:
            DataError: the shard cannot be read or differs from the manifest, or the disk is full.
        """
        final = self._folder / shard.name
        partial = final.with_name(final.name + PARTIAL_SUFFIX)
        source = self._directory / shard.name
        try:
            while not final.exists():
                # Append mode: another process may be writing the file, so do not truncate it yet.
                with partial.open("ab") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)
                    if not _is_same_file(file.fileno(), partial):
                        continue
                    file.truncate(0)
                    for part in _read_parts(source, shard):
                        file.write(part)
                    file.flush()
                    check_records(partial, shard, name=source)
                    publish(partial, final)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(partial, 0)
            raise DataError(f"{source}: cannot be copied to {final}: {reason(error)}") from error
        return final


def _folder(manifest: Manifest) -> Path:
    return cache_folder() / "shards" / manifest.sha256[:32]


def _read_parts(source: Location, shard: Shard) -> Iterator[bytes]:
    for start in range(0, shard.bytes, _PART_BYTES):
        end = min(start + _PART_BYTES, shard.bytes)
        with store_errors(source, "read"):
            part = file_system(source).cat_file(os.fspath(source), start=start, end=end)
        if len(part) != end - start:
            raise DataError(f"{source}: ends at byte {start + len(part)}; the manifest says {shard.bytes}")
        yield part


def _is_same_file(descriptor: int, path: Path) -> bool:
    """Return whether `path` still names the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _hold(folder: Path) -> int:
    """Return a descriptor that protects the folder from removal while it is open."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / _IN_USE
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _is_same_file(descriptor, path):
            return descriptor
        os.close(descriptor)


def _remove_unused(own: Path, max_bytes: int) -> None:
    """Remove unused folders of other texts until the rest has at most `max_bytes`."""
    others = []
    for folder in own.parent.iterdir():
        # Another process may remove it.
        with contextlib.suppress(FileNotFoundError):
            if folder != own and folder.is_dir():
                others.append((folder.stat().st_mtime, _measure(folder), folder))
    total = sum(size for _, size, _ in others)
    for _, size, folder in sorted(others):
        if total <= max_bytes:
            return
        with contextlib.suppress(FileNotFoundError), (folder / _IN_USE).open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(folder)
        total -= size


def _measure(folder: Path) -> int:
    """Return the bytes of the files of a folder; other processes may rename and remove files meanwhile."""
    size = 0
    for file in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            size += file.stat().st_size
    return size
