"""Write a model to a folder (model.safetensors, config.json, tokenizer.model), and read it bit for bit.

The config.json of a `transformers` folder with PyTorch files (`transformers_folder`) contains the same
description, so `read_model` also reads such folders.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from jaxtyping import PyTree

from birdie_jax.config import Config, to_dict
from birdie_jax.errors import ConfigError, DataError, InteropError, shown
from birdie_jax.interop.tensor_names import name_parameters, parameters_from_names
from birdie_jax.interop.torch_layout import read_torch_tensors
from birdie_jax.interop.weights_file import read_weights, write_weights
from birdie_jax.models import build_model
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.saved_config import parse_saved_config, read_json
from birdie_jax.storage import (
    PARTIAL_SUFFIX,
    download,
    exists,
    is_remote,
    make_folders,
    make_path,
    publish,
    sync,
    upload,
    write_json,
)
from birdie_jax.storage.typed import parse_typed
from birdie_jax.storage.workdir import is_configuration
from birdie_jax.text import Tokenizer

CONFIG = "config.json"
"""The file that is written to a bucket last. A folder without it contains no model."""


@contextlib.contextmanager
def new_folder(folder: epath.PathLike) -> Iterator[Path]:
    """Yield a folder for a model's files, including `CONFIG`. On exit, it becomes `folder`.

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
        make_folders(partial)
        yield Path(partial)
        for path in Path(partial).iterdir():
            # The library that writes the weights makes the file readable only by its owner.
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
        raise InteropError(f"{path}: cannot be looked up: {error}") from error


WEIGHTS, TOKENIZER, CARD = "model.safetensors", "tokenizer.model", "README.md"
FORMAT = "birdie_jax"
"""The name of the format in the config.json of an exported folder."""
_VERSION = 1
DESCRIPTION = "birdie_jax"
"""The key of the description in the config.json of a `transformers` folder."""
EXPORTED = "a folder that birdie_jax.export or birdie_jax.import_model wrote"
"""Such a folder, in words."""


@dataclass(frozen=True)
class _Description:
    """The contents of an exported config.json.

    Attributes:
        format: the name of the format.
        format_version: the version of the format.
        step: the train step of the parameters.
        parameters: the number of parameters.
        vocab_size: the number of rows of the embedding table.
        tokenizer_sha256: the hash of the tokenizer of the training run.
        config: the configuration of the run, as nested dictionaries.
    """

    format: str
    format_version: int
    step: int
    parameters: int
    vocab_size: int
    tokenizer_sha256: str
    config: dict[str, Any]


class ExportedModel(NamedTuple):
    """The contents of an exported folder.

    Attributes:
        config: the configuration of the run that trained the model.
        params: the model's parameters, as arrays of their stored types.
        tokenizer: the model's tokenizer.
        step: the train step of the parameters.
    """

    config: Config
    params: PyTree
    tokenizer: Tokenizer
    step: int


def write_model(
    folder: epath.PathLike,
    config: Config,
    params: PyTree,
    tokenizer: Tokenizer,
    step: int,
    *,
    card: str = "",
) -> None:
    """Write a model to `folder`, which must not exist. The write is atomic.

    Args:
        folder: the new folder.
        config: the configuration of the run that trained the model.
        params: the model's parameters.
        tokenizer: the model's tokenizer.
        step: the train step of the parameters.
        card: the text of README.md. If empty, the folder has no README.md.

    Raises:
        InteropError: the folder exists or cannot be written, or the file format lacks a parameter's type.
    """
    model = ExportedModel(config, params, tokenizer, step)
    named = named_tensors(params)
    with new_folder(folder) as new:
        write_weights(new / WEIGHTS, named)
        write_json(new / CONFIG, describe(model))
        tokenizer.save(str(new / TOKENIZER))
        write_card(new, card)


def named_tensors(params: PyTree) -> dict[str, np.ndarray]:
    """Return the parameters as host arrays, by their names in files."""
    return {name: np.asarray(leaf) for name, leaf in name_parameters(jax.device_get(params)).items()}


def describe(model: ExportedModel) -> dict[str, Any]:
    """Return the contents of the config.json that `read_model` reads."""
    description = _Description(
        format=FORMAT,
        format_version=_VERSION,
        step=model.step,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(model.params)),
        vocab_size=model.tokenizer.vocab_size,
        tokenizer_sha256=model.tokenizer.sha256,
        config=to_dict(model.config),
    )
    return asdict(description)


def write_card(folder: Path, card: str) -> None:
    """Write a model's README.md, if `card` is not empty."""
    if card:
        (folder / CARD).write_text(card, encoding="utf-8")


@contextlib.contextmanager
def _local_weights(path: epath.Path) -> Iterator[Path]:
    """Yield the weights as a local file, because the safetensors reader supports only local files."""
    if not is_remote(path):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory() as here:
        local = Path(here) / WEIGHTS
        try:
            download(path, local)
        except OSError as error:
            raise InteropError(f"{path}: cannot be read: {error}") from error
        try:
            yield local
        except InteropError as error:
            raise InteropError(str(error).replace(str(local), str(path))) from error


def read_model(folder: epath.PathLike) -> ExportedModel:
    """Read a model from `folder`.

    Raises:
        InteropError: a file is missing or damaged, or the files contradict one another.
    """
    folder = make_path(folder)
    path = folder / CONFIG
    description, config, by_torch = _read_description(path)
    try:
        tokenizer = Tokenizer(str(folder / TOKENIZER))
    except DataError as error:
        raise InteropError(str(error)) from error
    _check_tokenizer(folder, description, tokenizer)
    shapes = parameter_shapes(build_model(config.model, tokenizer.vocab_size))
    wanted = {name: leaf.shape for name, leaf in name_parameters(shapes).items()}
    described_by = f"{path} ({config.model.name})"
    with _local_weights(folder / WEIGHTS) as weights:
        if by_torch:
            named = read_torch_tensors(weights.parent, wanted, described_by)
        else:
            named = read_weights(weights, wanted, described_by)
    return ExportedModel(config, parameters_from_names(named, shapes), tokenizer, description.step)


def read_model_config(folder: epath.PathLike) -> Config:
    """Return the configuration of the run that trained the model of `folder`.

    Raises:
        InteropError: config.json is missing or damaged.
    """
    return _read_description(make_path(folder) / CONFIG)[1]


def _check_format(described: Any, where: str) -> dict[str, Any]:
    """Return a description, if this program reads its format.

    Raises:
        InteropError: it does not, or this is another program's or a run's config.json.
    """
    if not isinstance(described, dict):
        raise InteropError(f"{where}: found {shown(described)}; allowed: the object that export writes")
    if "format" not in described:
        found = "no format of an exported model"
        if "model_type" in described:
            found = (
                f"the model_type {shown(described['model_type'])}, which birdie_jax.import_model imports"
            )
        elif is_configuration(described):
            found = "the configuration of a run, which is a --workdir"
        raise InteropError(f"{where}: found {found}; allowed: {EXPORTED}")
    for name, allowed in (("format", FORMAT), ("format_version", _VERSION)):
        if described.get(name) != allowed:
            raise InteropError(f"{where}: {name}: found {shown(described.get(name))}; allowed: {allowed!r}")
    return described


def _read_description(path: epath.Path) -> tuple[_Description, Config, bool]:
    """Return the description, its configuration, and whether the tensors have the PyTorch layout."""
    try:
        described = read_json(path, EXPORTED)
        by_torch = DESCRIPTION in described
        where = f"{path}: {DESCRIPTION}" if by_torch else str(path)
        described = _check_format(described[DESCRIPTION] if by_torch else described, where)
        description = parse_typed(_Description, described, str(path), InteropError)
        return description, parse_saved_config(description.config, path, importing=False), by_torch
    except ConfigError as error:
        raise InteropError(str(error)) from error


def _check_tokenizer(folder: epath.Path, description: _Description, tokenizer: Tokenizer) -> None:
    for field, found in (("vocab_size", tokenizer.vocab_size), ("tokenizer_sha256", tokenizer.sha256)):
        expected = getattr(description, field)
        if expected != found:
            raise InteropError(
                f"{folder / TOKENIZER}: does not fit the weights: its {field} is {found}; "
                f"{folder / WEIGHTS} was made with {expected}"
            )
