"""Convert a `transformers` model, or a model in the same layout, to this project and back, bit for bit.

Their token i is token 256 + i here. The rows of the 256 special tokens, and the rows that pad the table,
start as the mean of the other rows. Such a model has no special tokens; the configuration records this
(`model.start_token`, `model.min_predicted_id` and the fields next to them).
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from jaxtyping import PyTree

from birdie_jax.config import Config, ModelConfig
from birdie_jax.errors import ConfigError, DataError, InteropError, shown
from birdie_jax.interop import gated_deltanet, mamba, mamba2, recurrent_gemma
from birdie_jax.interop.counterparts import Counterpart, Tensor
from birdie_jax.interop.huggingface_tensors import SINGLE, StoredTensors, open_tensors
from birdie_jax.interop.model_folder import (
    CONFIG,
    DESCRIPTION,
    EXPORTED,
    FORMAT,
    ExportedModel,
    new_folder,
    read_model,
    write_card,
)
from birdie_jax.interop.tensor_names import name_parameters, parameters_from_names
from birdie_jax.interop.weights_file import write_weights
from birdie_jax.models import build_model
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.saved_config import read_json
from birdie_jax.storage import is_remote, make_path, write_json
from birdie_jax.storage.workdir import is_configuration
from birdie_jax.text import Tokenizer
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS

Settings = (
    mamba.MambaSettings
    | mamba2.Mamba2Settings
    | gated_deltanet.GatedDeltaNetSettings
    | recurrent_gemma.RecurrentGemmaSettings
)
HEAD = "lm_head.weight"
_ALLOWED = "a folder of a Hugging Face model"


class HuggingFaceModel(NamedTuple):
    """A kind of model of `transformers`.

    Attributes:
        model_type: the name of the kind in config.json.
        read_settings: (contents of a config.json, its path) -> settings.
        to_config: (settings, type of computation, path) -> our configuration.
        from_config: (architecture, number of rows in their embedding) -> settings.
        counterparts: architecture -> all tensors except the embedding and the head.
        embeddings: the names of the embedding. The first is written; the reader accepts all.
    """

    model_type: str
    read_settings: Callable[[dict[str, Any], Path], Any]
    to_config: Callable[[Any, str, Path], Config]
    from_config: Callable[[ModelConfig, int], Any]
    counterparts: Callable[[ModelConfig], tuple[Counterpart, ...]]
    embeddings: tuple[str, ...]


_MODELS = {
    "mamba": HuggingFaceModel(
        mamba.MODEL_TYPE,
        mamba.read_settings,
        mamba.to_config,
        mamba.from_config,
        mamba.counterparts,
        (mamba.EMBEDDING, mamba.EMBEDDING_OF_AUTHORS),
    ),
    "mamba2": HuggingFaceModel(
        mamba2.MODEL_TYPE,
        mamba2.read_settings,
        mamba2.to_config,
        mamba2.from_config,
        mamba2.counterparts,
        (mamba.EMBEDDING, mamba.EMBEDDING_OF_AUTHORS),
    ),
    "gated_deltanet": HuggingFaceModel(
        gated_deltanet.MODEL_TYPE,
        gated_deltanet.read_settings,
        gated_deltanet.to_config,
        gated_deltanet.from_config,
        gated_deltanet.counterparts,
        (gated_deltanet.EMBEDDING,),
    ),
    "griffin": HuggingFaceModel(
        recurrent_gemma.MODEL_TYPE,
        recurrent_gemma.read_settings,
        recurrent_gemma.to_config,
        recurrent_gemma.from_config,
        recurrent_gemma.counterparts,
        (recurrent_gemma.EMBEDDING,),
    ),
}


def kind_of_folder(described: dict[str, Any], path: Path) -> HuggingFaceModel:
    """Return the kind of the model that a config.json describes.

    Raises:
        InteropError: this program does not read this kind.
    """
    found = described.get("model_type")
    for kind in _MODELS.values():
        if kind.model_type == found:
            return kind
    allowed = ", ".join(repr(kind.model_type) for kind in _MODELS.values())
    raise InteropError(f"{path}: model_type: found {shown(found)}; allowed: {allowed}")


def kind_of_model(model: ModelConfig) -> HuggingFaceModel:
    """Return the kind of a model of this project in `transformers`.

    Raises:
        InteropError: this program does not write this kind, or the model has a fine-tuning head.
    """
    if model.name not in _MODELS:
        allowed = ", ".join(map(repr, _MODELS))
        raise InteropError(
            f"model.name: found {model.name!r}; allowed: {allowed}, which transformers implements"
        )
    if model.head:
        raise InteropError(f"model.head: found {model.head!r}; allowed: '': the format has no such head")
    return _MODELS[model.name]


def has_counterpart(model: ModelConfig) -> bool:
    """Return whether a class of another library computes all that a model of this project does.

    A model that was trained here has a start token. The classes of other libraries lack this token.
    """
    if model.start_token or model.name not in _MODELS:
        return False
    try:
        _MODELS[model.name].from_config(model, 1)
    except InteropError:
        return False
    return True


TOKENIZER_JSON, TOKENIZER_MODEL = "tokenizer.json", "tokenizer.model"
TOKENIZER_CONFIG = "tokenizer_config.json"


def read_huggingface(folder: epath.PathLike, dtype: str | None = None) -> ExportedModel:
    """Read a folder with config.json, tokenizer.json and safetensors, in one file or in shards.

    Args:
        folder: the folder, on this machine.
        dtype: the type of activations and matrix products; parameters keep their own type. None is the
            type of the run that trained the model if the folder records it, otherwise float32.

    Raises:
        InteropError: a file is missing or damaged, the files contradict one another, or a setting is not
            supported.
    """
    if is_remote(make_path(folder)):
        raise InteropError(f"{folder}: found a URL; allowed: a folder on this machine")
    folder = Path(folder)
    path = folder / CONFIG
    try:
        described = read_json(path, _ALLOWED)
        if DESCRIPTION in described:
            return _with_dtype(read_model(folder), dtype)
        _check_other_program(described, folder)
        kind = kind_of_folder(described, path)
        settings = kind.read_settings(described, path)
        config = kind.to_config(settings, dtype or "float32", path)
        tokenizer = Tokenizer(str(folder / TOKENIZER_JSON))
    except (ConfigError, DataError) as error:
        raise InteropError(str(error)) from error
    _check_tokenizer(folder, settings, tokenizer)
    shapes = parameter_shapes(build_model(config.model, tokenizer.vocab_size))
    with open_tensors(folder) as stored:
        ours = {name: leaf.shape for name, leaf in name_parameters(shapes).items()}
        named = _read_tensors(stored, kind, config.model, settings, ours, path)
    return ExportedModel(config, parameters_from_names(named, shapes), tokenizer, 0)


def _check_other_program(described: dict[str, Any], folder: Path) -> None:
    """Refuse a run and an exported model of this project, and name the commands that read them.

    Raises:
        InteropError: the folder is one of them.
    """
    for found, is_one, flag in (
        ("the workdir of a run", is_configuration(described), "workdir"),
        (EXPORTED, described.get("format") == FORMAT, "model"),
    ):
        if is_one:
            raise InteropError(
                f"{folder}: found {found}; allowed: {_ALLOWED}; generate, evaluate and export read this "
                f"folder as --{flag}={folder}, and training as --config.init.from={folder}"
            )


def _with_dtype(model: ExportedModel, dtype: str | None) -> ExportedModel:
    if dtype is None:
        return model
    config = dataclasses.replace(model.config, model=dataclasses.replace(model.config.model, dtype=dtype))
    return model._replace(config=config)


def _check_tokenizer(folder: Path, settings: Settings, tokenizer: Tokenizer) -> None:
    rows = tokenizer.vocab_size - NUM_SPECIAL_TOKENS
    if not tokenizer.num_pieces <= settings.vocab_size <= rows:
        raise InteropError(
            f"{folder / CONFIG}: vocab_size: found {settings.vocab_size}; {folder / TOKENIZER_JSON} has "
            f"{tokenizer.num_pieces} pieces; allowed: from that to {rows}"
        )


def _read_tensors(  # noqa: PLR0917
    stored: StoredTensors,
    kind: HuggingFaceModel,
    model: ModelConfig,
    settings: Settings,
    shapes: dict[str, tuple[int, ...]],
    path: Path,
) -> dict[str, Tensor]:
    """Return our tensors by name. `shapes` has the shape of each."""
    parts = kind.counterparts(model)
    table = (settings.vocab_size, settings.hidden_size)
    found = [name for name in kind.embeddings if name in stored.files]
    embedding = found[0] if found else kind.embeddings[0]
    expected = {one.theirs: one.shape(shapes) for one in parts} | {embedding: table}
    if not settings.tie_word_embeddings or HEAD in stored.files:
        expected[HEAD] = table
    stored.check(expected, str(path))
    named: dict[str, Tensor] = {}
    for one in parts:
        named |= one.take_apart(stored.read(one.theirs), shapes)
    rows = stored.read(embedding)
    if settings.tie_word_embeddings and HEAD in expected and not np.array_equal(rows, stored.read(HEAD)):
        raise InteropError(
            f"{stored.files[HEAD][1]}: tensor {HEAD!r} differs from {embedding!r}; allowed: the same, as "
            f"{path} has tie_word_embeddings = true"
        )
    named["embedding"] = _with_special_rows(rows, shapes["embedding"][0])
    if not settings.tie_word_embeddings:
        named["head"] = _with_special_rows(stored.read(HEAD), shapes["head"][0])
    return named


def _with_special_rows(rows: Tensor, count: int) -> Tensor:
    """Return a table of `count` rows, with rows for special tokens before the rows of text."""
    table = np.empty((count, rows.shape[1]), rows.dtype)
    table[:] = rows.mean(axis=0, dtype=np.float64)
    table[NUM_SPECIAL_TOKENS : NUM_SPECIAL_TOKENS + len(rows)] = rows
    return table


def write_huggingface(
    folder: epath.PathLike, config: Config, params: PyTree, tokenizer: Tokenizer, *, card: str = ""
) -> None:
    """Write a model of `_MODELS` to the new `folder`, in the format of `transformers`.

    The function omits the rows of special tokens, so a model with a start token gives other answers there
    (`has_counterpart`). Tensors keep their types. If the head differs from the embedded tokens, for example
    because of `model.embedding_scale`, it writes two tensors. If `card` is not empty, it becomes README.md.

    Raises:
        InteropError: `transformers` does not support the model, the model is bidirectional or has a
            fine-tuning head, the folder exists, or the folder cannot be written.
    """
    model = config.model
    last = model.max_predicted_id or NUM_SPECIAL_TOKENS + tokenizer.num_pieces - 1
    kind = kind_of_model(model)
    settings = kind.from_config(model, last + 1 - NUM_SPECIAL_TOKENS)
    scale = (model.embedding_scale or model.features**0.5) / settings.embedding_scale
    tied = settings.tie_word_embeddings and scale == 1
    settings = dataclasses.replace(settings, tie_word_embeddings=tied)
    ours: dict[str, Tensor] = {
        name: np.asarray(leaf) for name, leaf in name_parameters(jax.device_get(params)).items()
    }
    rows = slice(NUM_SPECIAL_TOKENS, last + 1)
    tensors = {one.theirs: one.put_together(ours) for one in kind.counterparts(model)}
    embedding = ours["embedding"][rows]
    # Multiplication returns float32 for every type of table.
    tensors[kind.embeddings[0]] = embedding if scale == 1 else embedding * np.float32(scale)
    if not settings.tie_word_embeddings:
        tensors[HEAD] = ours["embedding" if model.tie_embeddings else "head"][rows]
    with new_folder(folder) as new:
        write_weights(new / SINGLE, tensors, {"format": "pt"})
        write_json(new / CONFIG, settings.to_json() | {"torch_dtype": embedding.dtype.name})
        tokenizer.save(str(new / (TOKENIZER_JSON if tokenizer.is_json else TOKENIZER_MODEL)))
        if tokenizer.is_json:
            write_json(new / TOKENIZER_CONFIG, _tokenizer_config(settings, tokenizer))
        write_card(new, card)


def _tokenizer_config(settings: Settings, tokenizer: Tokenizer) -> dict[str, str]:
    described = {"tokenizer_class": "PreTrainedTokenizerFast"}
    return described | {
        name: tokenizer.decode([NUM_SPECIAL_TOKENS + token])
        for name, token in settings.special_tokens.items()
        if token is not None
    }
