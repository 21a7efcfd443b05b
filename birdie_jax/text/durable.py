"""Files that are either whole or absent, also after a power failure."""

import os
from pathlib import Path

from birdie_jax.text.errors import DataError

# What a file is called until it is whole.
PARTIAL_SUFFIX = ".partial"


def sync(path: Path) -> None:
    """Force a file's contents, or a folder's entries, to the disk.

    Raises:
        OSError: the disk refuses.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temporary: Path, final: Path) -> None:
    """Give a finished file its final name, in one step, replacing what had that name.

    Raises:
        DataError: the disk refuses; the file of that name is as it was.
    """
    try:
        sync(temporary)
        temporary.replace(final)
        sync(final.parent)
    except OSError as error:
        raise DataError(f"{final}: cannot be written: {error.strerror}") from error


def write_whole(path: Path, contents: bytes) -> None:
    """Write a small file so that a reader sees the old contents or the new ones, never a mixture.

    Raises:
        DataError: the file cannot be written, for instance on a full disk; the old contents remain.
    """
    temporary = path.with_name(path.name + PARTIAL_SUFFIX)
    try:
        temporary.write_bytes(contents)
    except OSError as error:
        raise DataError(
            f"{path}: {len(contents)} bytes cannot be written: {error.strerror}; "
            "what was there before is kept"
        ) from error
    publish(temporary, path)
