"""JSON files of a workdir; an error names the file."""

import json
from typing import Any

from etils import epath

from birdie_jax.reporting.record_error import RecordError


def read_json(path: epath.Path) -> Any:
    """Return the value in a JSON file.

    Raises:
        RecordError: the file is missing or holds no JSON.
    """
    if not path.exists():
        raise RecordError(f"{path}: missing; allowed: the file that train writes")
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise RecordError(
            f"{path}: found no JSON ({error}); allowed: the file that train writes"
        ) from error


def read_json_object(path: epath.Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        RecordError: the file is missing or holds no JSON object.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise RecordError(f"{path}: found {type(value).__name__}; allowed: a JSON object")
    return value
