"""Reads a configuration that an earlier run saved as JSON."""

import os
from typing import Any

import ml_collections
from absl import logging
from etils import epath

from birdie_jax.config import Config, default_config, parse_config
from birdie_jax.errors import ConfigError
from birdie_jax.imports import changed_extensions, import_extensions, unknown_extensions
from birdie_jax.storage import parse_typed, read_bytes
from birdie_jax.storage.json_text import parse_json
from birdie_jax.storage.workdir import check_configuration

# Sections with fields that the user names.
_USER_NAMED = (
    "config.data.corpora",
    "config.objectives.arms",
    "config.eval.tasks",
    "config.finetune.stages",
)


def read_json(path: epath.PathLike, allowed: str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        ConfigError: the file does not exist or is not a JSON object; the message ends with `allowed`.
    """
    try:
        found = parse_json(read_bytes(path))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: not found; allowed: {allowed}") from error
    except NotADirectoryError as error:
        raise ConfigError(f"{os.path.dirname(path)}: is no folder; allowed: {allowed}") from error
    except (OSError, ValueError) as error:
        # The text of an OSError of the system begins with a number.
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be used: {reason}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: found {type(found).__name__}; allowed: {allowed}")
    return found


def parse_saved_config(found: dict[str, Any], path: epath.PathLike, *, importing: bool) -> Config:
    """Return the configuration in `found`, the contents of `path`.

    Missing fields are newer than the file; their defaults do not change a model. Unknown fields are
    ignored, with a warning.

    Args:
        found: the contents.
        path: the file.
        importing: whether to import `imports`, which runs their code; False for a bucket or an exported
            folder, which may belong to somebody else.

    Raises:
        ConfigError: the contents are not a configuration, a field has an unusable value, or an import
            fails.
    """
    check_configuration(found, path)
    recorded = parse_typed(tuple[str, ...], found.get("imports", ()), f"{path}: imports", ConfigError)
    if importing:
        import_extensions(recorded, f"{path}: imports")
    for name in unknown_extensions(recorded):
        logging.warning(
            "%s: needs the code of %s, which does not run from a bucket or an exported folder unless you "
            "import it: --import=%s",
            *(path, name, name),
        )
    for name in changed_extensions(recorded):
        logging.warning("%s: the code of %s has changed since", path, name)
    whole = _updated(default_config().to_dict(), found, "config", path)
    try:
        return parse_config(ml_collections.ConfigDict(whole), importing=importing)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _updated(
    default: dict[str, Any], found: dict[str, Any], where: str, path: epath.PathLike
) -> dict[str, Any]:
    """Return `default`, updated with the fields of `found`."""
    updated = dict(default)
    for name, value in found.items():
        if name not in default and where not in _USER_NAMED:
            logging.warning("%s: unknown field %s.%s; ignored", path, where, name)
        elif isinstance(value, dict) and isinstance(default.get(name), dict):
            updated[name] = _updated(default[name], value, f"{where}.{name}", path)
        else:
            updated[name] = value
    return updated
