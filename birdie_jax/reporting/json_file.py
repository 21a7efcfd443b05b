"""JSON files of a workdir; an error names the file."""

import json
import os
from typing import Any

from etils import epath

from birdie_jax.storage import exists, is_remote, read_bytes


class RecordError(ValueError):
    """A workdir that cannot be reported; the message names the file, the place and what is allowed."""


_ALLOWED = "the file that train writes"


def is_there(path: epath.Path) -> bool:
    """Tell whether there is a file of a workdir.

    Raises:
        RecordError: the store of the workdir does not answer.
    """
    try:
        return exists(path)
    except OSError as error:
        raise RecordError(f"{path}: cannot be looked for: {error}") from error


def read_file(path: epath.Path) -> bytes:
    """Return the contents of a file that training wrote.

    Raises:
        RecordError: there is no such file, or it cannot be read.
    """
    if not is_there(path):
        raise RecordError(f"{path}: missing; allowed: {_ALLOWED}")
    # A pipe would be waited for; to epath it is a file.
    if not (is_remote(path) or os.path.isfile(path)):
        raise RecordError(
            f"{path}: found {'a folder' if path.is_dir() else 'no file'}; allowed: {_ALLOWED}"
        )
    try:
        return read_bytes(path)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_json(path: epath.Path) -> Any:
    """Return the value in a JSON file.

    Raises:
        RecordError: the file is missing, cannot be read, or holds no JSON.
    """
    contents = read_file(path)
    try:
        return json.loads(contents)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: found no JSON ({error}); allowed: {_ALLOWED}") from error


def read_json_object(path: epath.Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        RecordError: the file is missing or holds no JSON object.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise RecordError(f"{path}: found {type(value).__name__}; allowed: a JSON object")
    return value
