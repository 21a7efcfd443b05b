"""A model as a folder: model.safetensors, config.json and tokenizer.model, and back bit for bit."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import PyTree

from birdie_jax.config import Config, ConfigError, to_dict
from birdie_jax.interop.interop_error import InteropError
from birdie_jax.interop.tensor_names import name_parameters, parameters_from_names
from birdie_jax.interop.weights_file import read_weights, write_weights
from birdie_jax.models import build_model
from birdie_jax.models.parameter_shapes import parameter_shapes
from birdie_jax.saved_config import parse_saved_config, read_json
from birdie_jax.storage import PARTIAL_SUFFIX, publish, sync, write_json
from birdie_jax.text import DataError, Tokenizer

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.model"
_FORMAT, _VERSION = "birdie_jax", 1
_EXPORTED = "a folder that birdie_jax.export wrote"


T = TypeVar("T")


class ExportedModel(NamedTuple):
    """The contents of an exported folder.

    Attributes:
        config: the configuration of the run that trained the model.
        params: the model's parameters, numpy arrays.
        tokenizer: the model's tokenizer.
        step: the train step of the parameters.
    """

    config: Config
    params: PyTree
    tokenizer: Tokenizer
    step: int


def write_model(folder: Path, config: Config, params: PyTree, tokenizer: Tokenizer, step: int) -> None:
    """Write a model to `folder`, which must not exist; it appears whole or not at all.

    Raises:
        InteropError: the folder exists, or cannot be written, or the file format lacks a parameter's type.
    """
    if folder.exists():
        raise InteropError(f"{folder}: exists; allowed: the name of a new folder")
    partial = folder.with_name(folder.name + PARTIAL_SUFFIX)
    named = {name: np.asarray(leaf) for name, leaf in name_parameters(jax.device_get(params)).items()}
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
        write_json(partial / CONFIG, described)
        tokenizer.save(partial / TOKENIZER)
        # The library that writes the weights makes them readable for their owner alone.
        shutil.copymode(partial / CONFIG, partial / WEIGHTS)
        sync(partial / WEIGHTS)
        publish(partial, folder)
    except (OSError, DataError) as error:
        raise InteropError(f"{folder}: cannot be written: {error}") from error


def read_model(folder: Path) -> ExportedModel:
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
    wanted = {name: leaf.shape for name, leaf in name_parameters(shapes).items()}
    named = read_weights(folder / WEIGHTS, wanted, f"{path} ({config.model.name})")
    step = _section(described, "step", int, path)
    return ExportedModel(config, parameters_from_names(named, shapes), tokenizer, step)


def _section(described: dict[str, Any], name: str, kind: type[T], path: Path) -> T:
    value = described.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InteropError(f"{path}: {name}: found {value!r}; allowed: {kind.__name__}")
    return value


def _check_tokenizer(folder: Path, described: dict[str, Any], tokenizer: Tokenizer) -> None:
    for field, found in (("vocab_size", tokenizer.vocab_size), ("tokenizer_sha256", tokenizer.sha256)):
        if described.get(field) != found:
            raise InteropError(
                f"{folder / TOKENIZER}: does not fit the weights: its {field} is {found}; "
                f"{folder / WEIGHTS} was made with {described.get(field)}"
            )
