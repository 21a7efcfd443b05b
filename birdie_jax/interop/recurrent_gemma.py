"""A RecurrentGemma of `transformers`: its config.json and tensors, and their counterparts here."""

import dataclasses
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from birdie_jax.config import Config, ModelConfig
from birdie_jax.errors import InteropError, shown
from birdie_jax.interop.counterparts import (
    MAP,
    SAME,
    TAPS,
    Counterpart,
    Form,
    foreign_config,
    of_layer,
    read_built,
)
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.griffin import GriffinConfig
from birdie_jax.models.hawk import HawkConfig
from birdie_jax.models.layer_stacks import layer_configs
from birdie_jax.models.registry import mixer_config
from birdie_jax.storage.typed import parse_typed
from birdie_jax.vocabulary import NUM_SPECIAL_TOKENS

EMBEDDING = "model.embed_tokens.weight"


def _map(theirs: str, ours: str) -> tuple[Counterpart, Counterpart]:
    """Return a map and its bias."""
    return (
        Counterpart(f"{theirs}.weight", (f"{ours}.kernel",), MAP),
        Counterpart(f"{theirs}.bias", (f"{ours}.bias",), SAME),
    )


# Both sides add the norms' weights to 1 (`model.norm_offset`).
EVERY_LAYER = (
    Counterpart("temporal_pre_norm.weight", ("mixer_norm.scale",), SAME),
    Counterpart("channel_pre_norm.weight", ("mlp_norm.scale",), SAME),
    *_map("mlp_block.gate_proj", "mlp.gate"),
    *_map("mlp_block.up_proj", "mlp.in"),
    *_map("mlp_block.down_proj", "mlp.out"),
)
"""The tensors of every layer."""

ATTENTION_LAYER = (
    *(
        Counterpart(f"temporal_block.{theirs}_proj.weight", (f"mixer.{ours}.kernel",), MAP)
        for theirs, ours in (("q", "query"), ("k", "key"), ("v", "value"))
    ),
    *_map("temporal_block.o_proj", "mixer.out"),
)
"""The additional tensors of an attention layer."""

OUTSIDE = (Counterpart("model.final_norm.weight", ("final_norm.scale",), SAME),)
"""The tensors outside the layers, except the embedding and the head, which have other rows."""


def recurrent_layer(heads: int) -> tuple[Counterpart, ...]:
    """Return the additional tensors of a recurrent layer whose gates have `heads` blocks."""
    # Their biases are [heads, channels of a head].
    by_head = Form(lambda tensor: tensor.reshape(-1), lambda tensor: tensor.reshape(heads, -1))
    gates = (("input_gate", "input_gate"), ("recurrent_gate", "recurrence_gate"))
    return (
        *_map("temporal_block.linear_y", "mixer.output_gate"),
        *_map("temporal_block.linear_x", "mixer.input"),
        *_map("temporal_block.linear_out", "mixer.out"),
        Counterpart("temporal_block.conv_1d.weight", ("mixer.convolution.kernel",), TAPS),
        Counterpart("temporal_block.conv_1d.bias", ("mixer.convolution.bias",), SAME),
        Counterpart("temporal_block.rg_lru.recurrent_param", ("mixer.rg_lru.decay",), SAME),
        *(
            Counterpart(f"temporal_block.rg_lru.{theirs}_{what}", (f"mixer.rg_lru.{ours}.{name}",), form)
            for theirs, ours in gates
            for what, name, form in (("weight", "kernel", SAME), ("bias", "bias", by_head))
        ),
    )


def counterparts(model: ModelConfig) -> tuple[Counterpart, ...]:
    """Return all tensors of a model except its embedding and head."""
    recurrent = recurrent_layer(model.section(HawkConfig).heads)
    layers = (
        of_layer(
            EVERY_LAYER
            + (ATTENTION_LAYER if isinstance(mixer_config(kind), AttentionConfig) else recurrent),
            "model.layers",
            layer,
        )
        for layer, kind in enumerate(layer_configs(model))
    )
    return OUTSIDE + tuple(chain.from_iterable(layers))


MODEL_TYPE = "recurrent_gemma"
# Settings that support only one value. Files may omit them.
_BUILT: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "embeddings_scale_by_sqrt_dim": True,
    "hidden_activation": "gelu_pytorch_tanh",
}
_ROPE = "rope_parameters"
_PAD = 0


@dataclass(frozen=True)
class RecurrentGemmaSettings:
    """The settings of a config.json that define the computation; see transformers' `RecurrentGemmaConfig`.

    Attributes:
        vocab_size: the number of rows in the embedding.
        hidden_size: the width D of the residual stream.
        num_hidden_layers: the number of layers.
        intermediate_size: twice the inner width of the MLP.
        num_attention_heads: the number of attention heads, and of blocks in the recurrence's gates.
        num_key_value_heads: the number of heads for keys and values.
        lru_width: the number of recurrent channels.
        attention_window_size: the number of tokens that a token attends to, including itself.
        conv1d_width: the number of taps in the short convolution.
        logits_soft_cap: the soft cap of the logits.
        rms_norm_eps: the number added to the mean square in norms.
        block_types: the pattern of the layers.
        rope_theta: the base of the rotary frequencies.
        partial_rotary_factor: the share of a head's channels that are rotated.
        tie_word_embeddings: whether the head is the embedding.
        bos_token_id: the beginning-of-text token.
        eos_token_id: the end-of-text token.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    lru_width: int
    attention_window_size: int = 2048
    conv1d_width: int = 4
    logits_soft_cap: float = 30.0
    rms_norm_eps: float = 1e-6
    block_types: tuple[str, ...] = ("recurrent", "recurrent", "attention")
    rope_theta: float = 10_000.0
    partial_rotary_factor: float = 0.5
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 2
    eos_token_id: int | None = 1

    @property
    def embedding_scale(self) -> float:
        """The factor on embedded tokens: the square root of the width, in bfloat16."""
        return float(jnp.bfloat16(self.hidden_size**0.5))

    @property
    def special_tokens(self) -> dict[str, int | None]:
        """The ids of the special tokens, by their names in a tokenizer's configuration."""
        return {"bos_token": self.bos_token_id, "eos_token": self.eos_token_id, "pad_token": _PAD}

    def to_json(self) -> dict[str, Any]:
        """Return a config.json with these settings."""
        described = dataclasses.asdict(self) | {"block_types": list(self.block_types)}
        rope = {name: described.pop(name) for name in ("rope_theta", "partial_rotary_factor")}
        return {
            "architectures": ["RecurrentGemmaForCausalLM"],
            "model_type": MODEL_TYPE,
            **described,
            "head_dim": self.hidden_size // self.num_attention_heads,
            "pad_token_id": _PAD,
            _ROPE: {"rope_type": "default", **rope},
            **{name: value for name, value in _BUILT.items() if name != "embeddings_scale_by_sqrt_dim"},
        }


def read_settings(described: dict[str, Any], path: Path) -> RecurrentGemmaSettings:
    """Return the settings in `described`, the contents of `path`.

    Raises:
        InteropError: a setting is missing or not supported.
    """
    read_built(described, _BUILT, path)
    rope = described.get(_ROPE) or {}
    if not isinstance(rope, dict) or rope.get("rope_type", "default") != "default":
        raise InteropError(
            f"{path}: {_ROPE}: found {shown(rope)}, which is not supported; allowed: rope_type 'default'"
        )
    # Older files have the rotary settings at the top level.
    described = described | {name: value for name, value in rope.items() if name != "rope_type"}
    fields = dataclasses.fields(RecurrentGemmaSettings)
    given = {one.name: one.default for one in fields if one.default is not dataclasses.MISSING}
    given |= {one.name: described[one.name] for one in fields if one.name in described}
    for name, other in (("num_key_value_heads", "num_attention_heads"), ("lru_width", "hidden_size")):
        if given.get(name) is None and other in given:
            given[name] = given[other]
    settings = parse_typed(RecurrentGemmaSettings, given, str(path), InteropError)
    if settings.intermediate_size % 2:
        raise InteropError(
            f"{path}: intermediate_size: found {settings.intermediate_size}; allowed: an even number"
        )
    width, heads = settings.hidden_size, settings.num_attention_heads
    if heads < 1 or width % heads:
        raise InteropError(
            f"{path}: num_attention_heads: found {heads}; allowed: a divisor of hidden_size = {width}"
        )
    if described.get("head_dim", width // heads) != width // heads:
        raise InteropError(
            f"{path}: head_dim: found {shown(described['head_dim'])}; allowed: hidden_size / "
            f"num_attention_heads = {width // heads}"
        )
    return settings


def to_config(settings: RecurrentGemmaSettings, dtype: str, path: Path) -> Config:
    """Return the configuration of a model with these settings and without special tokens.

    Args:
        settings: the settings.
        dtype: the type of activations and matrix products.
        path: the file of the settings, for messages.

    Raises:
        InteropError: this program does not support a setting.
    """
    begin = settings.bos_token_id
    if begin is not None and not 0 <= begin < settings.vocab_size:
        raise InteropError(
            f"{path}: bos_token_id: found {begin}; allowed: null, or an id below vocab_size = "
            f"{settings.vocab_size}"
        )
    heads = settings.num_attention_heads
    model = ModelConfig(
        name="griffin",
        layers=settings.num_hidden_layers,
        features=settings.hidden_size,
        state=settings.lru_width,
        mlp_features=settings.intermediate_size // 2,
        bidirectional=False,
        tie_embeddings=settings.tie_word_embeddings,
        dtype=dtype,
        norm_epsilon=settings.rms_norm_eps,
        norm_offset=1.0,
        mlp_bias=True,
        embedding_scale=settings.embedding_scale,
        logit_soft_cap=settings.logits_soft_cap,
        begin_token=0 if begin is None else NUM_SPECIAL_TOKENS + begin,
        sections=(
            AttentionConfig(
                heads=heads,
                kv_heads=settings.num_key_value_heads,
                rope_base=settings.rope_theta,
                rotary_share=settings.partial_rotary_factor,
                output_bias=True,
                window=settings.attention_window_size,
            ),
            GriffinConfig(",".join(settings.block_types)),
            HawkConfig(heads=heads, conv_width=settings.conv1d_width, bias=True),
        ),
    )
    return foreign_config(
        model,
        vocab_size=settings.vocab_size,
        end_token=settings.eos_token_id,
        conv_taps=settings.conv1d_width,
        path=path,
    )


def from_config(model: ModelConfig, vocab_size: int) -> RecurrentGemmaSettings:
    """Return the settings of a RecurrentGemma for `transformers`.

    Args:
        model: the architecture.
        vocab_size: the number of rows in their embedding.

    Raises:
        InteropError: the model is bidirectional, or RecurrentGemma lacks a setting that it needs.
    """
    attention, hawk = model.section(AttentionConfig), model.section(HawkConfig)
    griffin = model.section(GriffinConfig)
    for field, found, wanted in (
        ("bidirectional", model.bidirectional, False),
        ("norm_offset", model.norm_offset, 1.0),
        ("mlp_bias", model.mlp_bias, True),
        ("mlp_activation", model.mlp_activation, "gelu"),
        ("hawk.bias", hawk.bias, True),
        ("attention.output_bias", attention.output_bias, True),
        ("hawk.heads", hawk.heads, attention.heads),
    ):
        if found != wanted:
            raise InteropError(
                f"model.{field}: found {found}; allowed: {wanted}, as in transformers' RecurrentGemma"
            )
    for field, value in (("logit_soft_cap", model.logit_soft_cap), ("attention.window", attention.window)):
        if not value:
            raise InteropError(
                f"model.{field}: found {value}; allowed: more than 0: transformers' RecurrentGemma has one"
            )
    kinds = {name: kind for kind, name in griffin.kinds.items()}
    layers = griffin.layer_models()
    if not kinds.keys() >= {*layers}:
        raise InteropError(
            f"model.griffin.pattern: found {griffin.pattern!r}; allowed: {' and '.join(griffin.kinds)}, "
            "as in transformers' RecurrentGemma"
        )
    return RecurrentGemmaSettings(
        vocab_size=vocab_size,
        hidden_size=model.features,
        num_hidden_layers=model.layers,
        intermediate_size=2 * model.mlp_features,
        num_attention_heads=attention.heads,
        num_key_value_heads=attention.kv_heads or attention.heads,
        lru_width=model.state,
        attention_window_size=attention.window,
        conv1d_width=hawk.conv_width,
        logits_soft_cap=model.logit_soft_cap,
        rms_norm_eps=model.norm_epsilon,
        block_types=tuple(kinds[name] for name in layers),
        rope_theta=attention.rope_base,
        partial_rotary_factor=attention.rotary_share,
        tie_word_embeddings=model.tie_embeddings,
        bos_token_id=model.begin_token - NUM_SPECIAL_TOKENS if model.begin_token else None,
        eos_token_id=model.end_token - NUM_SPECIAL_TOKENS if model.end_token else None,
    )
