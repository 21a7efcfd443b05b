"""A Mamba of `transformers`: its config.json and tensors, and their counterparts here."""

import dataclasses
import math
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from birdie_jax.config import Config, ModelConfig
from birdie_jax.interop.counterparts import (
    MAP,
    SAME,
    TAPS,
    Counterpart,
    check_model,
    foreign_config,
    of_layer,
    ratio_of,
    read_built,
    read_fields,
    width_of,
)
from birdie_jax.models.mamba import FEATURES_PER_RANK, MambaConfig
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS

EMBEDDING = "backbone.embeddings.weight"
# The name in the authors' code.
EMBEDDING_OF_AUTHORS = "backbone.embedding.weight"

LAYER = (
    Counterpart("norm.weight", ("mixer_norm.scale",), SAME),
    Counterpart("mixer.in_proj.weight", ("mixer.input.kernel", "mixer.output_gate.kernel"), MAP),
    Counterpart("mixer.conv1d.weight", ("mixer.convolution.kernel",), TAPS),
    Counterpart("mixer.conv1d.bias", ("mixer.convolution.bias",), SAME),
    Counterpart("mixer.x_proj.weight", ("mixer.selection.kernel",), MAP),
    Counterpart("mixer.dt_proj.weight", ("mixer.step.kernel",), MAP),
    Counterpart("mixer.dt_proj.bias", ("mixer.step_bias",), SAME),
    Counterpart("mixer.A_log", ("mixer.A_log",), SAME),
    Counterpart("mixer.D", ("mixer.D",), SAME),
    Counterpart("mixer.out_proj.weight", ("mixer.out.kernel",), MAP),
)
"""The tensors of a layer. in_proj has the rows of x, followed by the rows of z."""

OUTSIDE = (Counterpart("backbone.norm_f.weight", ("final_norm.scale",), SAME),)
"""The tensors outside the layers, except the embedding and the head, which have other rows."""


def counterparts(model: ModelConfig) -> tuple[Counterpart, ...]:
    """Return all tensors of a model except its embedding and head."""
    layers = [of_layer(LAYER, "backbone.layers", layer) for layer in range(model.layers)]
    return OUTSIDE + tuple(chain.from_iterable(layers))


MODEL_TYPE = "mamba"
# Settings that support only one value. Files may omit them.
_BUILT: dict[str, Any] = {"use_bias": False, "use_conv_bias": True, "hidden_act": "silu", "ssm_cfg": {}}


@dataclass(frozen=True)
class MambaSettings:
    """The settings of a config.json that define the computation; see `MambaConfig` of `transformers`.

    Attributes:
        vocab_size: the number of rows in the embedding.
        hidden_size: the width D of the residual stream.
        num_hidden_layers: the number of layers.
        intermediate_size: the number E of inner channels.
        state_size: the number N of states per channel.
        conv_kernel: the number of taps in the short convolution.
        time_step_rank: the rank R of the map to the steps.
        layer_norm_epsilon: the number added to the mean square in norms.
        residual_in_fp32: whether the residual stream is always float32.
        tie_word_embeddings: whether the head is the embedding.
        eos_token_id: the end-of-text token.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    state_size: int = 16
    conv_kernel: int = 4
    time_step_rank: int = 0
    layer_norm_epsilon: float = 1e-5
    residual_in_fp32: bool = True
    tie_word_embeddings: bool = True
    eos_token_id: int | None = 0

    @property
    def embedding_scale(self) -> float:
        """The factor on embedded tokens."""
        return 1.0

    @property
    def special_tokens(self) -> dict[str, int | None]:
        """The ids of the special tokens, by their names in a tokenizer's configuration."""
        return dict.fromkeys(("bos_token", "eos_token", "pad_token"), self.eos_token_id)

    def to_json(self) -> dict[str, Any]:
        """Return a config.json with these settings."""
        described = dataclasses.asdict(self)
        described["expand"] = ratio_of(self.intermediate_size, self.hidden_size)
        tokens = {name: self.eos_token_id for name in ("bos_token_id", "pad_token_id")}
        built = {name: value for name, value in _BUILT.items() if name != "ssm_cfg"}
        return {
            "architectures": ["MambaForCausalLM"],
            "model_type": MODEL_TYPE,
            **described,
            **tokens,
            **built,
        }


def read_settings(described: dict[str, Any], path: Path) -> MambaSettings:
    """Return the settings in `described`, the contents of `path`.

    Raises:
        InteropError: a setting is missing or not supported.
    """
    read_built(described, _BUILT, path)
    derived = {}
    width, expand = described.get("hidden_size"), described.get("expand")
    if isinstance(width, int) and isinstance(expand, int | float):
        derived["intermediate_size"] = width_of(expand, width)
    return read_fields(MambaSettings, described, path, **derived)


def to_config(settings: MambaSettings, dtype: str, path: Path) -> Config:
    """Return the configuration of a model with these settings and without special tokens.

    Args:
        settings: the settings.
        dtype: the type of activations and matrix products.
        path: the file of the settings, for messages.

    Raises:
        InteropError: this program does not support a setting.
    """
    model = ModelConfig(
        name="mamba",
        layers=settings.num_hidden_layers,
        features=settings.hidden_size,
        state=settings.intermediate_size,
        bidirectional=False,
        tie_embeddings=settings.tie_word_embeddings,
        dtype=dtype,
        norm_epsilon=settings.layer_norm_epsilon,
        embedding_scale=settings.embedding_scale,
        residual_dtype="float32" if settings.residual_in_fp32 else "",
        sections=(MambaConfig(settings.state_size, settings.time_step_rank, settings.conv_kernel),),
    )
    return foreign_config(
        model,
        vocab_size=settings.vocab_size,
        end_token=settings.eos_token_id,
        conv_taps=settings.conv_kernel,
        path=path,
    )


def from_config(model: ModelConfig, vocab_size: int) -> MambaSettings:
    """Return the settings of a Mamba for `transformers`.

    Args:
        model: the architecture.
        vocab_size: the number of rows in their embedding.

    Raises:
        InteropError: the model is bidirectional, or its norms or scores differ.
    """
    fields = (
        ("model.bidirectional", model.bidirectional, False),
        ("model.norm_offset", model.norm_offset, 0.0),
        ("model.logit_soft_cap", model.logit_soft_cap, 0.0),
    )
    check_model(fields, "transformers' Mamba")
    section = model.section(MambaConfig)
    rank = section.time_step_rank or math.ceil(model.features / FEATURES_PER_RANK)
    return MambaSettings(
        vocab_size=vocab_size,
        hidden_size=model.features,
        num_hidden_layers=model.layers,
        intermediate_size=model.state,
        state_size=section.state_size,
        conv_kernel=section.conv_width,
        time_step_rank=rank,
        layer_norm_epsilon=model.norm_epsilon,
        residual_in_fp32=(model.residual_dtype or model.dtype) == "float32",
        tie_word_embeddings=model.tie_embeddings,
        eos_token_id=model.end_token - NUM_SPECIAL_TOKENS if model.end_token else None,
    )
