"""A configuration that an earlier run has saved as JSON."""

from typing import Any

import ml_collections
from absl import logging
from etils import epath

from birdie_jax.config import Config, default_config, parse_config
from birdie_jax.errors import ConfigError
from birdie_jax.storage import read_bytes
from birdie_jax.storage.json_text import parse_json
from birdie_jax.storage.workdir import check_configuration

# Sections whose fields are named by the user.
_USER_NAMED = ("config.objectives.arms", "config.eval.tasks", "config.finetune.stages")


def read_json(path: epath.PathLike, allowed: str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        ConfigError: there is no such file, or no object in it; the message says what is `allowed`.
    """
    try:
        found = parse_json(read_bytes(path))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: not found; allowed: {allowed}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be used: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: found {type(found).__name__}; allowed: {allowed}")
    return found


def parse_saved_config(found: dict[str, Any], path: epath.PathLike) -> Config:
    """Return the configuration in `found`, the contents of `path`.

    Fields that it lacks were added after it was saved; their defaults leave a model as it was. Fields that
    are known no more are left out, with a warning.

    Raises:
        ConfigError: it is no configuration, or a field has an unusable value.
    """
    check_configuration(found, path)
    whole = _updated(default_config().to_dict(), found, "config", path)
    try:
        return parse_config(ml_collections.ConfigDict(whole))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _updated(
    default: dict[str, Any], found: dict[str, Any], where: str, path: epath.PathLike
) -> dict[str, Any]:
    """Return `default` with the fields of `found` in their places."""
    updated = dict(default)
    for name, value in found.items():
        if name not in default and where not in _USER_NAMED:
            logging.warning("%s: %s.%s is known no more, and left out", path, where, name)
        elif isinstance(value, dict) and isinstance(default.get(name), dict):
            updated[name] = _updated(default[name], value, f"{where}.{name}", path)
        else:
            updated[name] = value
    return updated
