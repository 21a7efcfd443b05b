"""Folders of a model's files that appear whole or not at all, here or in a bucket."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from birdie_jax.interop.interop_error import InteropError
from birdie_jax.storage import PARTIAL_SUFFIX, exists, is_remote, make_path, publish, sync, upload
from birdie_jax.text import DataError

CONFIG = "config.json"
"""The file that is written to a bucket last: without it a folder holds no model."""


@contextlib.contextmanager
def new_folder(folder: epath.PathLike) -> Iterator[Path]:
    """Give a folder to write a model's files to, `CONFIG` among them; they become `folder` when it is left.

    Raises:
        InteropError: the folder exists, or cannot be written.
    """
    folder = make_path(folder)
    if _is_there(folder):
        raise InteropError(f"{folder}: exists; allowed: the name of a new folder")
    if is_remote(folder):
        with tempfile.TemporaryDirectory() as here, _errors_named(folder):
            yield Path(here)
            names = sorted(path.name for path in Path(here).iterdir())
            for name in sorted(names, key=lambda name: name == CONFIG):
                upload(Path(here) / name, folder / name)
        return
    partial = folder.with_name(folder.name + PARTIAL_SUFFIX)
    with _errors_named(folder):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield Path(partial)
        for path in Path(partial).iterdir():
            # The library that writes the weights makes them readable for their owner alone.
            shutil.copymode(partial / CONFIG, path)
            sync(epath.Path(path))
        publish(partial, folder)


@contextlib.contextmanager
def _errors_named(folder: epath.Path) -> Iterator[None]:
    try:
        yield
    except (OSError, DataError) as error:
        raise InteropError(f"{folder}: cannot be written: {error}") from error


def _is_there(path: epath.Path) -> bool:
    try:
        return exists(path)
    except OSError as error:
        raise InteropError(f"{path}: cannot be looked for: {error}") from error
