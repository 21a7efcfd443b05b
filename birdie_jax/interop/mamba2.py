"""A Mamba-2 of `transformers`: its config.json and tensors, and their counterparts here."""

import dataclasses
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from birdie_jax.config import Config, ModelConfig
from birdie_jax.errors import InteropError, shown
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
from birdie_jax.interop.mamba import OUTSIDE
from birdie_jax.models.mamba2 import Mamba2Config
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS

_CONVOLVED = ("input", "input_weights", "output_weights")

LAYER = (
    Counterpart("norm.weight", ("mixer_norm.scale",), SAME),
    Counterpart(
        "mixer.in_proj.weight",
        tuple(f"mixer.{name}.kernel" for name in ("output_gate", *_CONVOLVED, "step")),
        MAP,
    ),
    Counterpart(
        "mixer.conv1d.weight", tuple(f"mixer.{name}_convolution.kernel" for name in _CONVOLVED), TAPS
    ),
    Counterpart("mixer.conv1d.bias", tuple(f"mixer.{name}_convolution.bias" for name in _CONVOLVED), SAME),
    Counterpart("mixer.dt_bias", ("mixer.step_bias",), SAME),
    Counterpart("mixer.A_log", ("mixer.A_log",), SAME),
    Counterpart("mixer.D", ("mixer.D",), SAME),
    Counterpart("mixer.norm.weight", ("mixer.norm_scale",), SAME),
    Counterpart("mixer.out_proj.weight", ("mixer.out.kernel",), MAP),
)
"""The tensors of a layer. in_proj has the rows of z, x, B, C and the steps; conv1d has x, B and C."""

MODEL_TYPE = "mamba2"
# Settings that support only one value. Files may omit them.
_BUILT: dict[str, Any] = {
    "use_bias": False,
    "use_conv_bias": True,
    "hidden_act": "silu",
    "rms_norm": True,
    "norm_before_gate": False,
}
# Settings of the authors' code that `transformers` lacks.
_OF_AUTHORS = ("rms_norm", "norm_before_gate")
# "No limit", as different versions write it.
_UNLIMITED = ([0.0, float("inf")], [0.0, {"__float__": "Infinity"}])


def counterparts(model: ModelConfig) -> tuple[Counterpart, ...]:
    """Return all tensors of a model except its embedding and head."""
    layers = [of_layer(LAYER, "backbone.layers", layer) for layer in range(model.layers)]
    return OUTSIDE + tuple(chain.from_iterable(layers))


@dataclass(frozen=True)
class Mamba2Settings:
    """The settings of a config.json that define the computation; see `Mamba2Config` of `transformers`.

    Attributes:
        vocab_size: the number of rows in the embedding.
        hidden_size: the width D of the residual stream.
        num_hidden_layers: the number of layers.
        num_heads: the number of heads.
        head_dim: the number P of channels per head.
        state_size: the number N of states per channel.
        n_groups: the number of groups of heads that share B and C.
        conv_kernel: the number of taps in the short convolution.
        layer_norm_epsilon: the number added to the mean square in norms.
        residual_in_fp32: whether the residual stream is always float32.
        tie_word_embeddings: whether the head is the embedding.
        eos_token_id: the end-of-text token.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_heads: int
    head_dim: int = 64
    state_size: int = 128
    n_groups: int = 8
    conv_kernel: int = 4
    layer_norm_epsilon: float = 1e-5
    residual_in_fp32: bool = True
    tie_word_embeddings: bool = False
    eos_token_id: int | None = 2

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
        return {
            "architectures": ["Mamba2ForCausalLM"],
            "model_type": MODEL_TYPE,
            **dataclasses.asdict(self),
            "expand": ratio_of(self.num_heads * self.head_dim, self.hidden_size),
            "bos_token_id": self.eos_token_id,
            "pad_token_id": self.eos_token_id,
            **{name: value for name, value in _BUILT.items() if name not in _OF_AUTHORS},
        }


def read_settings(described: dict[str, Any], path: Path) -> Mamba2Settings:
    """Return the settings in `described`, the contents of `path`.

    Raises:
        InteropError: a setting is missing or not supported.
    """
    read_built(described, _BUILT, path)
    limit = described.get("time_step_limit", _UNLIMITED[0])
    if limit not in _UNLIMITED:
        raise InteropError(
            f"{path}: time_step_limit: found {shown(limit)}, which is not supported; "
            f"allowed: {_UNLIMITED[0]}"
        )
    derived = {}
    width, expand, features = (described.get(name) for name in ("hidden_size", "expand", "head_dim"))
    if (
        isinstance(width, int)
        and isinstance(expand, int | float)
        and isinstance(features, int)
        and features
    ):
        derived["num_heads"] = width_of(expand, width) // features
    return read_fields(Mamba2Settings, described, path, **derived)


def to_config(settings: Mamba2Settings, dtype: str, path: Path) -> Config:
    """Return the configuration of a model with these settings and without special tokens.

    Args:
        settings: the settings.
        dtype: the type of activations and matrix products.
        path: the file of the settings, for messages.

    Raises:
        InteropError: this program does not support a setting.
    """
    section = Mamba2Config(
        conv_width=settings.conv_kernel,
        head_features=settings.head_dim,
        state_size=settings.state_size,
        groups=settings.n_groups,
    )
    model = ModelConfig(
        name="mamba2",
        layers=settings.num_hidden_layers,
        features=settings.hidden_size,
        state=settings.num_heads * settings.head_dim,
        bidirectional=False,
        tie_embeddings=settings.tie_word_embeddings,
        dtype=dtype,
        norm_epsilon=settings.layer_norm_epsilon,
        embedding_scale=settings.embedding_scale,
        residual_dtype="float32" if settings.residual_in_fp32 else "",
        sections=(section,),
    )
    return foreign_config(
        model,
        vocab_size=settings.vocab_size,
        end_token=settings.eos_token_id,
        conv_taps=settings.conv_kernel,
        path=path,
    )


def from_config(model: ModelConfig, vocab_size: int) -> Mamba2Settings:
    """Return the settings of a Mamba-2 for `transformers`.

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
    check_model(fields, "transformers' Mamba-2")
    section = model.section(Mamba2Config)
    return Mamba2Settings(
        vocab_size=vocab_size,
        hidden_size=model.features,
        num_hidden_layers=model.layers,
        num_heads=section.heads(model),
        head_dim=section.head_features,
        state_size=section.state_size,
        n_groups=section.groups,
        conv_kernel=section.conv_width,
        layer_norm_epsilon=model.norm_epsilon,
        residual_in_fp32=(model.residual_dtype or model.dtype) == "float32",
        tie_word_embeddings=model.tie_embeddings,
        eos_token_id=model.end_token - NUM_SPECIAL_TOKENS if model.end_token else None,
    )
