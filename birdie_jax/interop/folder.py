"""A model as a folder: model.safetensors, config.json and tokenizer.model, and back bit for bit."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from birdie_jax.config import Config, ConfigError, to_dict
from birdie_jax.interop.errors import InteropError
from birdie_jax.interop.names import from_names, to_names
from birdie_jax.interop.weights_file import read_weights, write_weights
from birdie_jax.models import build_model
from birdie_jax.models.parameter_shapes import parameter_shapes
from birdie_jax.saved_config import parse_saved_config, read_json
from birdie_jax.text import DataError, Tokenizer

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.model"
_FORMAT, _VERSION = "birdie_jax", 1
_EXPORTED = "a folder that birdie_jax.export wrote"


class ReadModel(NamedTuple):
    """What a folder holds.

    Attributes:
        config: of the run that made the model.
        params: numpy arrays.
        tokenizer: the model's.
        step: of training.
    """

    config: Config
    params: Any
    tokenizer: Tokenizer
    step: int


def write_model(folder: Path, config: Config, params: Any, tokenizer: Tokenizer, step: int) -> None:
    """Write a model to `folder`, which must not exist; it appears whole or not at all.

    Raises:
        InteropError: the folder exists, or cannot be written, or a parameter's type has no place in it.
    """
    if folder.exists():
        raise InteropError(f"{folder}: exists; allowed: the name of a new folder")
    partial = folder.with_name(folder.name + ".partial")
    named = {name: np.asarray(leaf) for name, leaf in to_names(jax.device_get(params)).items()}
    described = {
        "format": _FORMAT,
        "format_version": _VERSION,
        "step": step,
        "parameters": sum(leaf.size for leaf in named.values()),
        "vocab_size": tokenizer.vocab_size,
        "tokenizer_sha256": tokenizer.sha256,
        "config": to_dict(config),
    }
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write_weights(partial / WEIGHTS, named)
        (partial / CONFIG).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        tokenizer.save(partial / TOKENIZER)
        # The library that writes the weights lets nobody else read them.
        shutil.copymode(partial / CONFIG, partial / WEIGHTS)
        partial.rename(folder)
    except (OSError, DataError) as error:
        raise InteropError(f"{folder}: cannot be written: {error}") from error


def read_model(folder: Path) -> ReadModel:
    """Read a model from `folder`.

    Raises:
        InteropError: a file is missing or damaged, or the three do not fit one another.
    """
    path = folder / CONFIG
    try:
        described = read_json(path, _EXPORTED)
        kind = described.get("format", described.get("model_type"))
        if kind != _FORMAT or described.get("format_version") != _VERSION:
            raise InteropError(
                f"{path}: found format {kind!r}, version {described.get('format_version')!r}; "
                f"allowed: {_FORMAT!r}, version {_VERSION}"
            )
        config = parse_saved_config(_section(described, "config", dict, path), path)
        tokenizer = Tokenizer(folder / TOKENIZER)
    except (ConfigError, DataError) as error:
        raise InteropError(str(error)) from error
    _check_tokenizer(folder, described, tokenizer)
    shapes = parameter_shapes(build_model(config.model, tokenizer.vocab_size))
    wanted = {name: leaf.shape for name, leaf in to_names(shapes).items()}
    named = read_weights(folder / WEIGHTS, wanted, f"{path} ({config.model.name})")
    return ReadModel(config, from_names(named, shapes), tokenizer, _section(described, "step", int, path))


def _section(described: dict[str, Any], name: str, kind: type, path: Path) -> Any:
    if not isinstance(described.get(name), kind):
        raise InteropError(f"{path}: {name}: found {described.get(name)!r}; allowed: {kind.__name__}")
    return described[name]


def _check_tokenizer(folder: Path, described: dict[str, Any], tokenizer: Tokenizer) -> None:
    for field, found in (("vocab_size", tokenizer.vocab_size), ("tokenizer_sha256", tokenizer.sha256)):
        if described.get(field) != found:
            raise InteropError(
                f"{folder / TOKENIZER}: does not fit the weights: its {field} is {found}; "
                f"{folder / WEIGHTS} was made with {described.get(field)}"
            )
