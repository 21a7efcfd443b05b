"""Writing a file so that a reader sees the old contents or the new ones, never a mixture."""

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etils import epath

# What a local file is called until it is whole.
PARTIAL_SUFFIX = ".partial"
_WITHOUT_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)


def is_remote(path: epath.PathLike) -> bool:
    """Tell whether `path` names an object of a store (`gs://...`) instead of a local file."""
    return "://" in os.fspath(path)


def sync(path: epath.PathLike) -> None:
    """Force a local file's contents, or a local folder's entries, to the disk.

    Raises:
        OSError: the disk refuses.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temporary: epath.PathLike, final: epath.PathLike) -> None:
    """Give a finished local file its final name in one step, replacing what had that name.

    Raises:
        OSError: the disk refuses; the file of that name is as it was.
    """
    sync(temporary)
    os.replace(temporary, final)
    sync(os.path.dirname(os.path.abspath(final)))


def write_whole(path: epath.PathLike, contents: bytes) -> None:
    """Write `contents` to `path`, also past a power failure whole or not at all.

    A store's objects appear whole by themselves; a local file is written beside its place first.

    Raises:
        OSError: the file cannot be written, for instance on a full disk; the old contents remain.
    """
    if is_remote(path):
        epath.Path(path).write_bytes(contents)
        return
    path = Path(path)
    temporary = path.with_name(path.name + PARTIAL_SUFFIX)
    with _naming(path):
        temporary.write_bytes(contents)
        publish(temporary, path)


def create_whole(path: epath.PathLike, contents: bytes) -> bool:
    """Write `contents` to `path` unless there is such a file; of several that try, one succeeds.

    Returns:
        Whether this call has written the file.

    Raises:
        OSError: the file cannot be written, or the store cannot do it.
    """
    if is_remote(path):
        raise OSError(errno.ENOTSUP, "conditional creation is not supported in this store", os.fspath(path))
    path = Path(path)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PARTIAL_SUFFIX}")
    try:
        with _naming(path):
            temporary.write_bytes(contents)
            sync(temporary)
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _WITHOUT_HARD_LINKS:
            raise
        return _create_exclusively(path, contents)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _create_exclusively(path: Path, contents: bytes) -> bool:
    """Create a file where the file system has no hard links, as mounted buckets have none."""
    try:
        with path.open("xb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        return False
    return True


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let errors of the system name the file: those of a full disk name none."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_json(path: epath.PathLike, value: Any) -> None:
    """Write `value` as indented JSON, whole or not at all.

    Raises:
        OSError: the file cannot be written; the old contents remain.
    """
    write_whole(path, (json.dumps(value, indent=2) + "\n").encode())
