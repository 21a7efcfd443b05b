"""Check the outputs of a command before it runs: they can be written, and overwrite nothing of value."""

import fnmatch
import glob
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Literal, NamedTuple

from etils import epath

from birdie_jax.errors import ConfigError, StoreError
from birdie_jax.storage.files import PARTIAL_SUFFIX, list_names, prove_writable
from birdie_jax.storage.object_store import is_remote, make_path
from birdie_jax.storage.workdir import Workdir

# The folder of a run or an exported model has two of these names; such a model also has the weights.
_MARKS = frozenset({"config.json", "tokenizer.model", "checkpoints", "metrics.jsonl"})
_WEIGHTS = "model.safetensors"


class Input(NamedTuple):
    """An input of a command.

    Attributes:
        flag: the flag of the input, for messages: `--context_file`.
        path: the file, folder or glob, or its URL.
        all_files: for a folder, whether the command reads every file below it, or only files of some names.
    """

    flag: str
    path: epath.PathLike
    all_files: bool = False


class Output(NamedTuple):
    """An output of a command.

    Attributes:
        flag: the flag of the output, for messages: `--json`.
        path: the file or folder, or its URL.
        kind: "file": a file that is written as a whole; "lines": a local file to which lines are appended;
            "folder": a folder in which files are written; "new folder": a folder that must not exist.
        files: the names of the files that are written in a folder.
    """

    flag: str
    path: epath.PathLike
    kind: Literal["file", "lines", "folder", "new folder"] = "file"
    files: Sequence[str] = ()


def check_outputs(outputs: Sequence[Output], inputs: Sequence[Input] = ()) -> None:
    """Check that a command can write its outputs and overwrites nothing of value.

    The check leaves nothing behind.

    Args:
        outputs: the outputs of the command.
        inputs: its inputs.

    Raises:
        ConfigError: an output is also an input or the output of another flag, under any name; it is a file
            of a run or an exported model, or in a folder that the command reads; or it cannot be written.
            The message names the flag.
    """
    for output in outputs:
        check_place(output, inputs)
    for number, output in enumerate(outputs):
        for other in outputs[:number]:
            if any(_is_same(one, another) for one in _written(output) for another in _written(other)):
                raise ConfigError(
                    f"{output.flag}={output.path}: is what {other.flag} writes too; allowed: another name"
                )
    for output in outputs:
        check_writable(output)


def check_place(output: Output, inputs: Sequence[Input] = ()) -> None:
    """Check that an output overwrites no input, and no file of a run or an exported model.

    Raises:
        ConfigError: it overwrites one; the message names the flag.
    """
    for path in _written(output):
        for read in inputs:
            if _reads(read, path):
                raise ConfigError(
                    f"{output.flag}={output.path}: is what {read.flag} reads; allowed: another name"
                )
        if owner := _owner(path):
            raise ConfigError(
                f"{output.flag}={output.path}: is a file of the run or the exported model in {owner}; "
                "allowed: another name"
            )
    for read in inputs:
        if read.all_files and _is_within(output.path, read.path):
            raise ConfigError(
                f"{output.flag}={output.path}: is in the folder {read.path}, which {read.flag} reads; "
                "allowed: a place outside of it"
            )


def check_writable(output: Output) -> None:
    """Check that an output can be written, as far as possible in advance; leave nothing behind.

    Raises:
        ConfigError: the output cannot be written; the message names the flag.
    """
    where = f"{output.flag}={output.path}"
    path = make_path(output.path)
    try:
        if output.kind == "new folder" and (list_names(path) if is_remote(path) else os.path.lexists(path)):
            raise ConfigError(f"{where}: exists; allowed: the name of a new folder")
        if output.kind in ("folder", "new folder"):
            with _folder(Path(path), where) if not is_remote(path) else nullcontext():
                for file in output.files or ("file",):
                    _check_file(path / file, f"{output.flag}={path / file}")
        elif output.kind == "file":
            _check_file(path, where)
        else:
            _check_lines(path, where)
    except StoreError as error:
        raise ConfigError(f"{output.flag}: {error}") from error
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{where}: cannot be written: {reason}") from error


def _written(output: Output) -> list[epath.Path]:
    """Return the files that an output replaces or creates, or the folder that it creates."""
    path = make_path(output.path)
    if output.kind == "folder":
        return [path / name for name in output.files]
    # The root folder has no name; a later check reports that it is a folder.
    if output.kind == "lines" or is_remote(path) or not path.name:
        return [path]
    # The file has the second name until it is complete.
    return [path, path.with_name(path.name + PARTIAL_SUFFIX)]


def _reads(read: Input, path: epath.Path) -> bool:
    """Return whether an input reads `path`."""
    if is_remote(path) or is_remote(read.path):
        return fnmatch.fnmatchcase(os.fspath(path), os.fspath(read.path).rstrip("/"))
    # A write to a terminal or a pipe replaces nothing.
    if not (os.path.isfile(path) or os.path.isdir(path)):
        return False
    name = os.fspath(read.path)
    names = [name] if os.path.lexists(name) else glob.iglob(name, recursive=True)
    return any(_is_same(path, one) for one in names)


def _is_same(one: epath.PathLike, other: epath.PathLike) -> bool:
    """Return whether two names mean the same file, considering links, relative paths and URLs."""
    if is_remote(one) or is_remote(other):
        return os.fspath(one) == os.fspath(other)
    if not _names(one).isdisjoint(_names(other)):
        return True
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of the files does not exist
        return False


def _names(path: epath.PathLike) -> set[str]:
    """Return the absolute names of a local path: its own, and its target's if it is a link."""
    folder, name = os.path.split(os.fspath(path))
    return {os.path.join(os.path.realpath(folder), name), os.path.realpath(path)}


def _is_within(path: epath.PathLike, folder: epath.PathLike) -> bool:
    if is_remote(path) or is_remote(folder):
        return os.fspath(path).startswith(os.fspath(folder).rstrip("/") + "/")
    if not os.path.isdir(folder):
        return False
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _owner(path: epath.Path) -> epath.Path | None:
    """Return the folder of a run or an exported model that owns a path or one of its parents.

    A user's own folder may contain one of these names by chance, but hardly two.
    """
    places = [path] if is_remote(path) else sorted(map(epath.Path, _names(path)))
    names = Workdir("").names() | {_WEIGHTS}
    for place in places:
        for part in (place, *place.parents):
            if part.name in names and len(_MARKS.intersection(_names_in(part.parent))) > 1:
                return part.parent
    return None


def _names_in(folder: epath.Path) -> list[str]:
    try:
        return list_names(folder)
    except StoreError:
        raise
    except OSError:  # not a folder, or not readable
        return []


@contextmanager
def _folder(path: Path, where: str) -> Iterator[None]:
    """Create a local folder and its parents, and remove the new ones on exit."""
    missing = [part for part in (path, *path.parents) if not os.path.lexists(part)]
    present = path if not missing else missing[-1].parent
    if not present.is_dir():
        raise ConfigError(f"{where}: found the file {present}; allowed: a folder, or a name that is free")
    made: list[Path] = []
    try:
        for part in reversed(missing):
            part.mkdir()
            made.append(part)
        with tempfile.TemporaryFile(dir=path):
            pass
        yield
    finally:
        for part in reversed(made):
            # Another program may already use the folder.
            with suppress(OSError):
                part.rmdir()


def _check_file(path: epath.Path, where: str) -> None:
    """Check a file that is written whole."""
    if not is_remote(path):
        if os.path.isdir(path):
            raise ConfigError(f"{where}: found a folder; allowed: a file")
        if os.path.exists(path) and not os.path.isfile(path):
            raise ConfigError(f"{where}: found a pipe or device; allowed: a file")
        _check_parent(path, where)
    prove_writable(path)


def _check_lines(path: epath.Path, where: str) -> None:
    """Check a file to which lines are appended."""
    if is_remote(path):
        raise ConfigError(f"{where}: found a URL; allowed: a file of this machine")
    local = Path(path)
    if local.is_dir():
        raise ConfigError(f"{where}: found a folder; allowed: a file")
    # Opening a pipe could wait for a reader forever. A shell's own pipes, such as /dev/fd/63, have one.
    if local.is_fifo() and not str(local).startswith("/dev/"):
        raise ConfigError(f"{where}: found a named pipe; allowed: a file")
    _check_parent(path, where)
    existed = os.path.lexists(local)
    with local.open("ab"):
        pass
    if not existed:
        local.unlink()


def _check_parent(path: epath.Path, where: str) -> None:
    if not path.parent.is_dir():
        raise ConfigError(f"{where}: found no folder {path.parent}; allowed: a file in one that is there")
