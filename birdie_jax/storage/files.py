"""Read, list and write files on a disk or in a bucket; a reader never sees a partial write."""

import contextlib
import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from etils import epath

from birdie_jax.storage.object_store import (
    begin_upload,
    file_system,
    find_first,
    is_remote,
    store_errors,
)

# The suffix of a local file until it is complete.
PARTIAL_SUFFIX = ".partial"
_OF_SHELL = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
# The time limit of a request does not depend on its size.
_PART_BYTES = 16 << 20
_WITHOUT_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)
# The limits of a disk, of a user's quota, and of one file.
_LACKS_OF_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def sync(path: epath.PathLike) -> None:
    """Force the contents of a local file, or the entries of a local folder, to the disk.

    Raises:
        OSError: the sync fails.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temporary: epath.PathLike, final: epath.PathLike) -> None:
    """Rename a finished local file to its final name atomically; replace a file of that name.

    Raises:
        OSError: the rename fails; the file of that name is unchanged.
    """
    sync(temporary)
    os.replace(temporary, final)
    sync(os.path.dirname(os.path.abspath(final)))


def write_whole(path: epath.PathLike, contents: bytes) -> None:
    """Write `contents` to `path` atomically; a power failure cannot leave a partial file.

    The objects of a store always appear whole. A local file is first written under another name.

    Raises:
        OSError: the file cannot be written, for example on a full disk; the old contents remain.
    """
    if is_remote(path):
        with store_errors(path, "written"):
            file_system(path).pipe_file(os.fspath(path), contents)
        return
    path = Path(path)
    with naming(path), _temporary(path) as temporary:
        temporary.write_bytes(contents)
        publish(temporary, path)


def prove_writable(path: epath.PathLike) -> None:
    """Check that `write_whole` can begin to write a file; leave nothing behind.

    This does not detect errors that occur later in a write, such as a full disk.

    Raises:
        OSError: the file cannot be written.
    """
    if is_remote(path):
        with store_errors(path, "written"):
            begin_upload(path)
        return
    path = Path(path)
    with naming(path), _temporary(path) as temporary:
        existed = os.path.lexists(temporary)
        with temporary.open("ab"):
            pass
        if not existed:
            temporary.unlink()


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """Yield the temporary name of a local file; remove the partial file if writing fails."""
    temporary = path.with_name(path.name + PARTIAL_SUFFIX)
    try:
        yield temporary
    except OSError:
        # A path that cannot be removed was not written here; for example, it is a folder.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def create_whole(path: epath.PathLike, contents: bytes) -> bool:
    """Write `contents` to a local `path` unless it exists; only one of several writers succeeds.

    Returns:
        Whether this call wrote the file.

    Raises:
        OSError: the file cannot be written.
    """
    path = Path(path)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PARTIAL_SUFFIX}")
    try:
        with naming(path):
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
    """Create a file on a file system without hard links, such as a mounted bucket."""
    try:
        with path.open("xb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        return False
    return True


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the name of a file or folder to system errors that have none, such as that of a full disk.

    Raises:
        OSError: the block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def is_full(error: Exception) -> bool:
    """Return whether a system error, or the message of a library, means a lack of space."""
    return any(os.strerror(number) in str(error) for number in _LACKS_OF_ROOM)


def make_folders(path: epath.PathLike) -> None:
    """Create a local folder and its parents, unless it exists.

    Raises:
        OSError: the folder cannot be created, or is too deep for Python's recursion.
    """
    try:
        os.makedirs(path, exist_ok=True)
    except RecursionError as error:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), os.fspath(path)) from error


def endless_kind(path: epath.PathLike) -> str:
    """Return "a named pipe" or "a device" for a local path that may never end; else an empty string.

    /dev/null ends at once. Files that a shell connects, such as /dev/stdin and /dev/fd/63, have a writer.
    """
    name = os.fspath(path)
    if name == os.devnull or name.startswith(_OF_SHELL):
        return ""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # open() raises an error with the reason
        return ""
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    return "a device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else ""


def read_bytes(path: epath.PathLike) -> bytes:
    """Return the contents of a file.

    Raises:
        OSError: the file does not exist, cannot be read, or may never end.
    """
    if not is_remote(path):
        if endless := endless_kind(path):
            raise OSError(errno.EINVAL, f"found {endless}; allowed: a file", os.fspath(path))
        return Path(path).read_bytes()
    with store_errors(path, "read"):
        return file_system(path).cat_file(os.fspath(path))


@contextlib.contextmanager
def open_bytes(path: epath.PathLike) -> Iterator[BinaryIO]:
    """Open a file to read it from beginning to end; a file in a bucket is read in parts.

    Raises:
        OSError: the file does not exist, or cannot be read.
    """
    if not is_remote(path):
        with open(path, "rb") as file:
            yield file
        return
    with store_errors(path, "read"), file_system(path).open(os.fspath(path), "rb") as file:
        yield file


def exists(path: epath.PathLike) -> bool:
    """Return whether a file or folder exists; in a bucket a folder exists while it has contents.

    Raises:
        OSError: the store does not answer, or has no such bucket.
    """
    if not is_remote(path):
        return os.path.exists(path)
    name = os.fspath(path).partition("://")[2].partition("/")[2]
    with store_errors(path, "looked for"):
        # The file itself sorts before all names that begin with its own, so one request is usually enough.
        first = find_first(path)
        if first is None or not name or first == name or first.startswith(f"{name}/"):
            return first is not None
        return find_first(f"{os.fspath(path)}/") is not None


def list_names(folder: epath.PathLike) -> list[str]:
    """Return the sorted names in a folder; empty if there is no such folder.

    Raises:
        OSError: the folder is a file, or cannot be listed, or there is no such bucket.
    """
    if not is_remote(folder):
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []
    prefix = os.fspath(folder).rstrip("/")
    try:
        with store_errors(folder, "listed"):
            found = file_system(folder).ls(prefix, detail=False)
    except FileNotFoundError:
        return []
    names = {os.fspath(name).rstrip("/").rsplit("/", 1)[-1] for name in found}
    # Some tools mark an empty folder with an object of the same name.
    return sorted(names - {prefix.rsplit("/", 1)[-1]})


def list_files(folder: epath.PathLike) -> dict[str, int]:
    """Return the size in bytes of every file below a folder, by its path relative to the folder.

    This takes one listing for any number of files. The result is empty if there is no such folder.

    Raises:
        OSError: the folder cannot be listed, or there is no such bucket.
    """
    if not is_remote(folder):
        root = Path(folder)
        return {
            str(file.relative_to(root)): file.stat().st_size
            for file in sorted(root.rglob("*"))
            if file.is_file()
        }
    prefix = os.fspath(folder).rstrip("/")
    try:
        with store_errors(folder, "listed"):
            found = file_system(folder).find(prefix, detail=True)
    except FileNotFoundError:
        return {}
    start = len(prefix.partition("://")[2]) + 1
    return {name[start:]: info["size"] for name, info in sorted(found.items()) if name[start:]}


def remove(path: epath.PathLike) -> None:
    """Remove a file, if it exists.

    Raises:
        OSError: the file cannot be removed.
    """
    if not is_remote(path):
        Path(path).unlink(missing_ok=True)
        return
    with contextlib.suppress(FileNotFoundError), store_errors(path, "removed"):
        file_system(path).rm_file(os.fspath(path))


def upload(file: Path, path: epath.PathLike) -> None:
    """Copy a local file to a path on a disk or in a bucket atomically.

    Raises:
        OSError: the file cannot be copied.
    """
    if not is_remote(path):
        with _temporary(Path(path)) as temporary:
            shutil.copyfile(file, temporary)
            publish(temporary, path)
        return
    with store_errors(path, "written"):
        file_system(path).put_file(os.fspath(file), os.fspath(path), chunksize=_PART_BYTES)


def download(path: epath.PathLike, file: Path) -> None:
    """Copy a file from a disk or a bucket to a local file.

    Raises:
        OSError: the file does not exist, or cannot be copied.
    """
    if not is_remote(path):
        shutil.copyfile(path, file)
        return
    with store_errors(path, "read"):
        file_system(path).get_file(os.fspath(path), os.fspath(file))


def move_folder(source: epath.Path, target: epath.Path, *, mark: str = "") -> None:
    """Move a folder with all its contents to a new name.

    In a bucket, its objects are copied and then removed. `mark` is removed first, so a partly removed
    folder has no mark.

    Args:
        source: the folder.
        target: its new name, which must not exist; its parents are created.
        mark: the name of the file that marks a complete folder.

    Raises:
        OSError: the folder cannot be moved; `source` is complete, or lacks its mark.
    """
    if not is_remote(source):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(source, target)
        return
    names = sorted(list_files(source), key=lambda name: name != mark)
    store = file_system(source)
    for name in reversed(names):
        with store_errors(source / name, "copied"):
            store.cp_file(os.fspath(source / name), os.fspath(target / name))
    for name in names:
        remove(source / name)


def write_json(path: epath.PathLike, value: Any) -> None:
    """Write `value` as indented JSON atomically.

    Raises:
        OSError: the file cannot be written; the old contents remain.
    """
    write_whole(path, (json.dumps(value, indent=2) + "\n").encode())
