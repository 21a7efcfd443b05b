"""Gated DeltaNet of flash-linear-attention: counterparts of its config.json and tensors in this project."""

import dataclasses
import math
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from birdie_jax.config import Config, ModelConfig
from birdie_jax.errors import InteropError
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
)
from birdie_jax.models.gated_deltanet import GatedDeltaNetConfig
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS

EMBEDDING = "model.embeddings.weight"

LAYER = (
    Counterpart("attn_norm.weight", ("mixer_norm.scale",), SAME),
    Counterpart("attn.q_proj.weight", ("mixer.query.kernel",), MAP),
    Counterpart("attn.k_proj.weight", ("mixer.key.kernel",), MAP),
    Counterpart("attn.v_proj.weight", ("mixer.value.kernel",), MAP),
    Counterpart("attn.a_proj.weight", ("mixer.decay.kernel",), MAP),
    Counterpart("attn.b_proj.weight", ("mixer.beta.kernel",), MAP),
    Counterpart("attn.g_proj.weight", ("mixer.output_gate.kernel",), MAP),
    Counterpart("attn.o_proj.weight", ("mixer.out.kernel",), MAP),
    Counterpart("attn.q_conv1d.weight", ("mixer.query_convolution.kernel",), TAPS),
    Counterpart("attn.k_conv1d.weight", ("mixer.key_convolution.kernel",), TAPS),
    Counterpart("attn.v_conv1d.weight", ("mixer.value_convolution.kernel",), TAPS),
    Counterpart("attn.A_log", ("mixer.A_log",), SAME),
    Counterpart("attn.dt_bias", ("mixer.step_bias",), SAME),
    Counterpart("attn.o_norm.weight", ("mixer.output_norm.scale",), SAME),
    Counterpart("mlp_norm.weight", ("mlp_norm.scale",), SAME),
    Counterpart("mlp.gate_proj.weight", ("mlp.gate.kernel",), MAP),
    Counterpart("mlp.up_proj.weight", ("mlp.in.kernel",), MAP),
    Counterpart("mlp.down_proj.weight", ("mlp.out.kernel",), MAP),
)
"""The tensors of a layer."""

OUTSIDE = (Counterpart("model.norm.weight", ("final_norm.scale",), SAME),)
"""The tensors outside the layers, except the embedding and the head, which have other rows."""

MODEL_TYPE = "gated_deltanet"
# Settings that support one value only; files may lack them.
_BUILT: dict[str, Any] = {
    "use_gate": True,
    "use_short_conv": True,
    "conv_bias": False,
    "hidden_act": "swish",
    "output_gate_activation": "swish",
    "attn": None,
    "attnres_block_size": None,
}
# The default width of the MLP: 2/3 of the ratio times the model's width, rounded up to a multiple of the
# unit.
_HIDDEN_RATIO, _WIDTH_UNIT = 4, 256


def counterparts(model: ModelConfig) -> tuple[Counterpart, ...]:
    """Return all tensors of a model except its embedding and head."""
    layers = [of_layer(LAYER, "model.layers", layer) for layer in range(model.layers)]
    return OUTSIDE + tuple(chain.from_iterable(layers))


@dataclass(frozen=True)
class GatedDeltaNetSettings:
    """The settings of a config.json that define the computation, by the names of flash-linear-attention.

    Attributes:
        vocab_size: the number of rows of the embedding.
        hidden_size: the width of the residual stream.
        num_hidden_layers: the number of layers.
        num_heads: the heads of queries and keys.
        head_dim: the width of a key.
        expand_v: the width of a value divided by the width of a key.
        intermediate_size: the inner width of the MLP.
        num_v_heads: the heads of values; None = `num_heads`.
        conv_size: the taps of the short convolutions.
        allow_neg_eigval: whether the maximum of beta is 2 instead of 1.
        norm_eps: the number added to the mean square in norms.
        tie_word_embeddings: whether the head is the embedding.
        eos_token_id: the token that ends a text.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_heads: int
    head_dim: int
    expand_v: float
    intermediate_size: int
    num_v_heads: int | None = None
    conv_size: int = 4
    allow_neg_eigval: bool = False
    norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    eos_token_id: int | None = 2

    @property
    def embedding_scale(self) -> float:
        """The factor of an embedded token."""
        return 1.0

    @property
    def special_tokens(self) -> dict[str, int | None]:
        """The ids of the special tokens of the tokenizer."""
        return {"eos_token": self.eos_token_id}

    def to_json(self) -> dict[str, Any]:
        """Return a config.json with these settings."""
        return {
            "architectures": ["GatedDeltaNetForCausalLM"],
            "model_type": MODEL_TYPE,
            **dataclasses.asdict(self),
            **{name: value for name, value in _BUILT.items() if name != "conv_bias"},
        }


def read_settings(described: dict[str, Any], path: Path) -> GatedDeltaNetSettings:
    """Return the settings in `described`, the contents of `path`.

    Raises:
        InteropError: a setting is missing or not supported.
    """
    read_built(described, _BUILT, path)
    described = {"expand_v": 2.0, "head_dim": 256, "num_heads": 6} | described
    width = described.get("hidden_size")
    if described.get("intermediate_size") is None and isinstance(width, int):
        ratio = described.get("hidden_ratio") or _HIDDEN_RATIO
        inner = int(width * ratio * 2 / 3)
        described["intermediate_size"] = -(-inner // _WIDTH_UNIT) * _WIDTH_UNIT
    settings = read_fields(GatedDeltaNetSettings, described, path)
    width = settings.head_dim * settings.expand_v
    if not math.isclose(width, int(width)):
        raise InteropError(
            f"{path}: expand_v: found {settings.expand_v}; allowed: a whole number times head_dim = "
            f"{settings.head_dim}"
        )
    return settings


def to_config(settings: GatedDeltaNetSettings, dtype: str, path: Path) -> Config:
    """Return the configuration of a model with these settings and without special tokens.

    Args:
        settings: the settings.
        dtype: the type of activations and matrix products.
        path: the file of the settings, for messages.

    Raises:
        InteropError: this program does not support a setting.
    """
    heads = settings.num_v_heads or settings.num_heads
    section = GatedDeltaNetConfig(
        conv_width=settings.conv_size,
        heads=heads,
        key_heads=settings.num_heads,
        key_features=settings.head_dim,
        negative_eigenvalues=settings.allow_neg_eigval,
    )
    model = ModelConfig(
        name="gated_deltanet",
        layers=settings.num_hidden_layers,
        features=settings.hidden_size,
        state=heads * int(settings.head_dim * settings.expand_v),
        mlp_features=settings.intermediate_size,
        mlp_activation="silu",
        bidirectional=False,
        tie_embeddings=settings.tie_word_embeddings,
        dtype=dtype,
        norm_epsilon=settings.norm_eps,
        embedding_scale=settings.embedding_scale,
        sections=(section,),
    )
    return foreign_config(
        model,
        vocab_size=settings.vocab_size,
        end_token=settings.eos_token_id,
        conv_taps=settings.conv_size,
        path=path,
    )


def from_config(model: ModelConfig, vocab_size: int) -> GatedDeltaNetSettings:
    """Return the settings of the Gated DeltaNet in flash-linear-attention with this architecture.

    Args:
        model: the architecture.
        vocab_size: the number of rows of the embedding in flash-linear-attention.

    Raises:
        InteropError: the model is bidirectional, or its decays, MLP, norms, residual stream or scores
            differ.
    """
    section = model.section(GatedDeltaNetConfig)
    fields = (
        ("model.bidirectional", model.bidirectional, False),
        ("model.gated_deltanet.channel_decay", section.channel_decay, False),
        ("model.mlp_activation", model.mlp_activation, "silu"),
        ("model.mlp_bias", model.mlp_bias, False),
        ("model.norm_offset", model.norm_offset, 0.0),
        ("model.logit_soft_cap", model.logit_soft_cap, 0.0),
        ("model.residual_dtype", model.residual_dtype or model.dtype, model.dtype),
    )
    check_model(fields, "flash-linear-attention")
    key_heads, d_k, d_v = section.sizes(model)
    return GatedDeltaNetSettings(
        vocab_size=vocab_size,
        hidden_size=model.features,
        num_hidden_layers=model.layers,
        num_heads=key_heads,
        head_dim=d_k,
        expand_v=float(ratio_of(d_v, d_k)),
        intermediate_size=model.mlp_features,
        num_v_heads=section.heads,
        conv_size=section.conv_width,
        allow_neg_eigval=section.negative_eigenvalues,
        norm_eps=model.norm_epsilon,
        tie_word_embeddings=model.tie_embeddings,
        eos_token_id=model.end_token - NUM_SPECIAL_TOKENS if model.end_token else None,
    )
