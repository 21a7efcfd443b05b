"""The fields of a configuration by their paths, and values that are invalid for any run."""

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

import ml_collections

from birdie_jax.config import Config, default_config
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.registry import mixer_sections
from birdie_jax.storage import file_key

HOSTILE = {
    "minus one": -1,
    "zero": 0,
    "2^31": 2**31,
    "2^63": 2**63,
    "10^18": 10**18,
    "10^400": 10**400,
    "10^5000": 10**5000,
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "1e300": 1e300,
    "-1e300": -1e300,
    "5e-324": 5e-324,
    "True": True,
    "empty text": "",
    "long text": "x" * 100_000,
    "two lines": "a\nb",
    "NUL": "a\0b",
    "half a pair": "a\ud800b",
    "None": None,
    "list": [],
    "long list": [1] * 100_000,
    "section": {},
    "section of a number": {1: 2},
}


def walk(section: type, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the type of every field, including the mixers' sections."""
    hints = typing.get_type_hints(section, include_extras=True)
    for field in dataclasses.fields(section):
        if section is ModelConfig and field.name == "sections":
            for kind in mixer_sections():
                yield from walk(kind, f"{path}{kind.section}.")
        elif dataclasses.is_dataclass(hints[field.name]):
            yield from walk(hints[field.name], f"{path}{field.name}.")
        else:
            yield path + file_key(field), hints[field.name]


FIELDS = dict(walk(Config))
SECTIONS = sorted({path.rpartition(".")[0] for path in FIELDS} - {""})


def changed(path: str, value: object) -> ml_collections.ConfigDict:
    """Return the default configuration with another value of one field."""
    whole = default_config().to_dict()
    *sections, leaf = path.split(".")
    inner = whole
    for section in sections:
        inner = inner[section]
    inner[leaf] = value
    return ml_collections.ConfigDict(whole)
