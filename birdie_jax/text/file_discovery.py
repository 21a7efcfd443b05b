"""Lists the files of a folder or a glob: each file once, through links, without skipping errors.

`glob` and `pathlib` silently skip folders that they may not read, and treat links to folders differently.
Here an unreadable folder is an error, and a link to a folder is followed, because data sets may span
several disks. A file or folder with several paths counts once, so circular links end.
"""

import errno
import fnmatch
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from birdie_jax.errors import DataError

_MAGIC = re.compile(r"[*?\[]")
_ANY_FOLDERS = "**"
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


def find_status(path: Path) -> os.stat_result | None:
    """Return the `stat` result of `path`, following links, or None if it does not exist.

    Raises:
        DataError: the system cannot determine whether it exists.
    """
    try:
        return path.stat()
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError:  # a null character, which no file name contains
        return None


def find_below(folder: Path, left_out: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield everything below `folder` that is not a folder.

    Hidden files and folders are ignored, and those whose name is in `left_out`.

    Raises:
        DataError: a folder cannot be listed.
    """
    for _, files in _walk(folder, left_out):
        yield from files


def find_matches(pattern: str) -> Iterator[Path]:
    """Yield the matches of a glob: `**` matches any folders, and only a dot matches a hidden name.

    Raises:
        DataError: a folder that may contain matches cannot be listed.
    """
    path = Path(pattern)
    parts = path.parts[1:] if path.anchor else path.parts
    segments = [
        part
        for number, part in enumerate(parts)
        if part != _ANY_FOLDERS or parts[number - 1 : number] != (_ANY_FOLDERS,)
    ]
    return _expand(Path(path.anchor), segments)


def keep_first_of_each(paths: Iterable[Path]) -> list[Path]:
    """Return the sorted paths, with only one path for each file.

    If several paths lead to a file through links, a path without a link is kept, or else the first path.
    """
    chosen: dict[str, Path] = {}
    real_folders: dict[Path, str] = {}
    linked = []
    for path in sorted(set(paths), key=Path.as_posix):
        if path.parent not in real_folders:
            real_folders[path.parent] = os.path.realpath(path.parent)
        real = os.path.join(real_folders[path.parent], path.name)
        if os.path.islink(real):
            linked.append((os.path.realpath(real), path))
        else:
            # Prefer a path without links to one through a link to a folder.
            if os.path.abspath(path) == real:
                chosen[real] = path
            chosen.setdefault(real, path)
    for real, path in linked:
        chosen.setdefault(real, path)
    return sorted(chosen.values(), key=Path.as_posix)


def _walk(folder: Path, left_out: frozenset[str]) -> Iterator[tuple[Path, list[Path]]]:
    """Yield `folder` and every folder below it, each once, with the entries that are not folders."""
    seen: set[str] = set()
    linked = deque([folder])  # links come last, so a folder is visited by its own path if it has one here
    while linked:
        pending = [linked.popleft()]
        while pending:
            current = pending.pop()
            real = os.path.realpath(current)
            if real in seen:
                continue
            seen.add(real)
            files, folders = [], []
            for entry in _list(current):
                path = current / entry.name
                if entry.name.startswith(".") or entry.name in left_out:
                    continue
                if not _is_folder(entry):
                    files.append(path)
                elif entry.is_symlink():
                    linked.append(path)
                else:
                    folders.append(path)
            yield current, files
            pending += reversed(folders)


def _expand(base: Path, segments: list[str]) -> Iterator[Path]:
    """Yield the paths below `base` that the segments of a pattern match."""
    if not segments:
        yield base
        return
    first, rest = segments[0], segments[1:]
    if first == _ANY_FOLDERS:
        if _is_listable(base):
            for folder, files in _walk(base, frozenset()):
                yield from _expand(folder, rest) if rest else files
    elif _MAGIC.search(first):
        for entry in _list(base) if _is_listable(base) else ():
            hidden = entry.name.startswith(".") and not first.startswith(".")
            if hidden or not fnmatch.fnmatchcase(entry.name, first):
                continue
            # Folders match the inner segments, and everything else the last one.
            if _is_folder(entry) == bool(rest):
                yield from _expand(base / entry.name, rest)
    else:
        path = base / first
        if rest or _exists(path):
            yield from _expand(path, rest)


def _exists(path: Path) -> bool:
    # A broken link exists; reading it raises the error.
    return os.path.islink(path) or find_status(path) is not None


def _is_listable(base: Path) -> bool:
    status = find_status(base)
    return status is not None and os.path.isdir(base)


def _list(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"{folder}: the folder cannot be read: {error.strerror}") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link to itself is not a folder; reading it raises the error
            return False
        raise DataError(f"{entry.path}: cannot be read: {error.strerror}") from error
