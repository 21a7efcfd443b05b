"""The kinds of models of `transformers` that are read and written: one line each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from birdie_jax.config import Config, ModelConfig
from birdie_jax.interop import (
    mamba_settings,
    mamba_tensors,
    recurrent_gemma_settings,
    recurrent_gemma_tensors,
)
from birdie_jax.interop.counterparts import Counterpart
from birdie_jax.interop.interop_error import InteropError
from birdie_jax.interop.mamba_settings import MambaSettings
from birdie_jax.interop.recurrent_gemma_settings import RecurrentGemmaSettings
from birdie_jax.storage import shown

Settings = MambaSettings | RecurrentGemmaSettings
HEAD = "lm_head.weight"


class HuggingFaceModel(NamedTuple):
    """A kind of model of `transformers`.

    Attributes:
        model_type: its name in a config.json.
        read_settings: (contents of a config.json, its path) -> settings.
        to_config: (settings, type of computation, path) -> the configuration that it is here.
        from_config: (architecture, rows of the embedding there) -> settings.
        counterparts: architecture -> all tensors but the embedding and the head.
        embeddings: the names of the embedding: the one that is written, then others that are read.
    """

    model_type: str
    read_settings: Callable[[dict[str, Any], Path], Any]
    to_config: Callable[[Any, str, Path], Config]
    from_config: Callable[[ModelConfig, int], Any]
    counterparts: Callable[[ModelConfig], tuple[Counterpart, ...]]
    embeddings: tuple[str, ...]


_MODELS = {
    "mamba": HuggingFaceModel(
        mamba_settings.MODEL_TYPE,
        mamba_settings.read_settings,
        mamba_settings.to_config,
        mamba_settings.from_config,
        mamba_tensors.counterparts,
        (mamba_tensors.EMBEDDING, mamba_tensors.EMBEDDING_OF_AUTHORS),
    ),
    "griffin": HuggingFaceModel(
        recurrent_gemma_settings.MODEL_TYPE,
        recurrent_gemma_settings.read_settings,
        recurrent_gemma_settings.to_config,
        recurrent_gemma_settings.from_config,
        recurrent_gemma_tensors.counterparts,
        (recurrent_gemma_tensors.EMBEDDING,),
    ),
}


def kind_of_folder(described: dict[str, Any], path: Path) -> HuggingFaceModel:
    """Return the kind of the model that a config.json describes.

    Raises:
        InteropError: it is none of those that are read.
    """
    found = described.get("model_type")
    for kind in _MODELS.values():
        if kind.model_type == found:
            return kind
    allowed = ", ".join(repr(kind.model_type) for kind in _MODELS.values())
    raise InteropError(f"{path}: model_type: found {shown(found)}; allowed: {allowed}")


def kind_of_model(model: ModelConfig) -> HuggingFaceModel:
    """Return the kind that a model of this project is in `transformers`.

    Raises:
        InteropError: it is none of those that are written.
    """
    if model.name not in _MODELS:
        allowed = ", ".join(map(repr, _MODELS))
        raise InteropError(f"model.name: found {model.name!r}; allowed: {allowed}, which transformers has")
    return _MODELS[model.name]
