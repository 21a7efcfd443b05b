"""A configuration that an earlier run has saved as JSON."""

import json
from pathlib import Path
from typing import Any

import ml_collections

from birdie_jax.config import Config, ConfigError, default_config, parse_config


def read_json(path: Path, allowed: str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        ConfigError: there is no such file, or no object in it; the message says what is `allowed`.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: not found; allowed: {allowed}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be used: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: found {type(found).__name__}; allowed: {allowed}")
    return found


def parse_saved_config(found: dict[str, Any], path: Path) -> Config:
    """Return the configuration in `found`, the contents of `path`.

    Fields that it lacks were added after it was saved; their defaults leave a model as it was.

    Raises:
        ConfigError: a field is unknown or has an unusable value.
    """
    whole = default_config().to_dict()
    for section, fields in found.items():
        both = isinstance(fields, dict) and isinstance(whole.get(section), dict)
        whole[section] = {**whole[section], **fields} if both else fields
    try:
        return parse_config(ml_collections.ConfigDict(whole))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
