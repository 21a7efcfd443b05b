"""The section of `config.model` that the four encoders of "Pretraining Without Attention" share."""

from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Unpack

import flax.linen as nn

from birdie_jax.array_types import Activations
from birdie_jax.config_sections import Config, MixerConfig, ModelConfig, Require
from birdie_jax.config_types import (
    DropoutRate,
    Heads,
    InitialDeviation,
    Name,
    RowLength,
    StepSize,
    TokenTypes,
    Width,
)
from birdie_jax.errors import ConfigError
from birdie_jax.models.axes import must_divide
from birdie_jax.models.layout import Layout
from birdie_jax.models.registry import Cache, ModuleFields, language_model_names, mixer_type


class EncoderMixer(nn.Module):
    """A `registry.Mixer` of an encoder; subclasses define `mix`.

    Attributes:
        attends: whether it uses attention over all pairs of tokens.
        combination: how it joins the two directions of state-space layers unless `config` sets it.
        config: the architecture.
    """

    attends: ClassVar[bool] = False
    combination: ClassVar[str] = ""

    config: ModelConfig

    @classmethod
    def from_config(
        cls, config: ModelConfig, *, output_scale: float = 1.0, **module: Unpack[ModuleFields]
    ) -> "EncoderMixer":
        """Return the mixer of `config`; `output_scale` is ignored, as all weights start small."""
        del output_scale
        return cls(config, **module)

    def __call__(
        self, x: Activations, layout: Layout, cache: Cache | None = None
    ) -> tuple[Activations, Cache | None]:
        """Mix the normalised inputs along the sequence, in both directions within the bounds of `layout`.

        Raises:
            ConfigError: a cache is given.
        """
        if cache is not None:
            refuse_cache(self.config)
        return self.mix(x, layout), None

    def mix(self, x: Activations, layout: Layout) -> Activations:
        """Return the update of the residual stream."""
        raise NotImplementedError

    def empty_cache(self, rows: int, length: int | None = None) -> NoReturn:
        """Refuse to decode.

        Raises:
            ConfigError: always.
        """
        refuse_cache(self.config)


def refuse_cache(config: ModelConfig) -> NoReturn:
    """Refuse to decode with an encoder.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(
        f"config.model.name: found {config.name!r}, a bidirectional encoder, which cannot generate: "
        "each of its tokens reads those after it, so a cache cannot continue from token to token; "
        f"allowed: {', '.join(language_model_names())}"
    )


ACTIVATIONS = ("tanh", "exact")
"""The forms of GELU: with Hendrycks and Gimpel's tanh, and with the error function."""

_NOT_READ = (
    "embedding_scale",
    "norm_offset",
    "mlp_bias",
    "mlp_activation",
    "residual_dtype",
    "scan_dtype",
    "scan_implementation",
    "min_predicted_id",
    "max_predicted_id",
)
"""The fields of `config.model` that other models use and encoders do not.

`state` is not included, because one config file sets the sizes of encoders and of other models.
"""

INITIALISATIONS = ("legs", "lin", "inv")
"""The initial eigenvalues of a state-space layer: S4D-LegS, S4D-Lin and S4D-Inv (Gu et al. 2022)."""

FORMS = ("toeplitz", "chunked")
"""The forms of a state-space layer that respect a layout's resets."""

COMBINATIONS = ("product", "sum", "serial")
"""The ways to join the forward and the backward state-space layer."""


@dataclass(frozen=True)
class EncoderConfig(MixerConfig):
    """`config.model.encoder`.

    Attributes:
        positions: the number of learned positions, and the maximum length of a row of a batch.
        token_types: the number of token types, which distinguish the two texts of a pair.
        embedding_dropout: the share of the embeddings that training sets to zero.
        activation: the form of GELU in the blocks, tanh or exact; the head's is exact.
        kernel_deviation: the initial standard deviation of the weights of the blocks. The paper's models of
            1,024 features have 0.02; 0.02 sqrt(1024 / features) gives the maps of narrower models the same
            gain.
        table_deviation: the initial standard deviation of the tables of words, positions and token types.
            The table of words also computes the scores; the same rule keeps their size as in the paper's
            models.
        attention_heads: the heads of the models with attention.
        ssm_state: the modes N of a state-space layer.
        ssm_heads: the number of groups of channels, each with its own kernel; 1 = all channels share one.
        ssm_initialisation: legs, lin or inv: S4D-LegS, S4D-Lin and S4D-Inv.
        ssm_min_step: the smallest initial step dt.
        ssm_max_step: the largest initial step dt.
        ssm_form: toeplitz or chunked; empty = the one with fewer FLOPs for the length of a row.
        ssm_chunk: the number of tokens of a chunk in the form chunked.
        combination: product, sum or serial: how the two directions are joined; empty = the mixer's own,
            product in bigs and sum in stack_ssm.
    """

    section: ClassVar[str] = "encoder"
    free_fields: ClassVar[frozenset[str]] = frozenset(
        {
            *("positions", "token_types", "embedding_dropout", "kernel_deviation", "table_deviation"),
            *("ssm_state", "ssm_heads", "ssm_initialisation", "ssm_min_step", "ssm_max_step"),
            *("ssm_form", "ssm_chunk"),
        }
    )

    positions: RowLength = 512
    token_types: TokenTypes = 2
    embedding_dropout: DropoutRate = 0.1
    activation: Name = "tanh"
    kernel_deviation: InitialDeviation = 0.02
    table_deviation: InitialDeviation = 0.02
    attention_heads: Heads = 16
    ssm_state: Width = 64
    ssm_heads: Heads = 1
    ssm_initialisation: Name = "legs"
    ssm_min_step: StepSize = 0.01
    ssm_max_step: StepSize = 1.0
    ssm_form: Name = ""
    ssm_chunk: RowLength = 128
    combination: Name = ""

    def check_fields(self, require: Require) -> None:
        """Check each field by itself."""

        def one_of(name: str, *allowed: str) -> None:
            require(
                getattr(self, name) in allowed, f"model.encoder.{name}", ", ".join(filter(None, allowed))
            )

        one_of("activation", *ACTIVATIONS)
        one_of("ssm_initialisation", *INITIALISATIONS)
        one_of("ssm_form", "", *FORMS)
        one_of("combination", "", *COMBINATIONS)
        allowed = f"at least model.encoder.ssm_min_step = {self.ssm_min_step}"
        require(self.ssm_max_step >= self.ssm_min_step, "model.encoder.ssm_max_step", allowed)

    def check_model(self, config: Config, require: Require) -> None:
        """Check positions, heads and mesh, and that unused fields keep their defaults."""
        model, default = config.model, ModelConfig()
        require(model.bidirectional, "model.bidirectional", f"True: {model.name} is an encoder")
        for name in _NOT_READ:
            only = getattr(default, name)
            allowed = f"{only!r}: the encoder {model.name} does not read it"
            require(getattr(model, name) == only, f"model.{name}", allowed)
        if self.attends(model):
            allowed = f"'': the encoder {model.name} does not read it"
            require(not self.combination, "model.encoder.combination", allowed)
        allowed = f"at least the longest rows, of {config.row_length} tokens"
        require(self.positions >= config.row_length, "model.encoder.positions", allowed)
        allowed = f"a divisor of model.features = {model.features}"
        for name in ("attention_heads",) if self.attends(model) else ("ssm_heads",):
            require(model.features % getattr(self, name) == 0, f"model.encoder.{name}", allowed)
        require(config.mesh.sequence == 1, "mesh.sequence", f"1: {model.name} reads whole rows")

    def mesh_problem(self, model: ModelConfig, length: int, axis: str, size: int) -> str | None:
        """Return why an axis cannot divide the model: `tensor` divides channels; rows stay whole."""
        if axis == "tensor":
            extents = {"model.features": model.features, "model.mlp_features": model.mlp_features}
            if self.attends(model):
                extents["model.encoder.attention_heads"] = self.attention_heads
            elif self.ssm_heads > 1:
                extents["model.encoder.ssm_heads"] = self.ssm_heads
            return must_divide(size, extents)
        if axis == "sequence" and size > 1:
            return f"{model.name} reads whole rows"
        return None

    def extra_flops_per_token(self, model: ModelConfig, length: int) -> float:
        """Return the FLOPs of mixing along the sequence, minus those counted for tables that are looked up.

        Attention counts all pairs of tokens, as in PaLM. A state-space layer counts both directions in its
        cheaper exact form: for each channel 2 L as a matrix product, 8 N as a recurrence.
        """
        tables = 6.0 * (self.positions + self.token_types) * model.features
        if self.attends(model):
            return 12.0 * model.layers * length * model.features - tables
        each_channel = min(2 * length, 8 * self.ssm_state)
        return 3.0 * model.layers * 2 * each_channel * model.features - tables

    def computation(self, model: ModelConfig) -> dict[str, Any]:
        """Return the fields that define the computation of attention or of state-space layers."""
        found = super().computation(model)
        del found["encoder.combination" if self.attends(model) else "encoder.attention_heads"]
        if not self.attends(model):
            found["encoder.combination"] = self.combination or _own_combination(model)
        return found

    @staticmethod
    def attends(model: ModelConfig) -> bool:
        """Return whether a model of this section uses attention."""
        return issubclass(mixer := mixer_type(model), EncoderMixer) and mixer.attends


def _own_combination(model: ModelConfig) -> str:
    return mixer.combination if issubclass(mixer := mixer_type(model), EncoderMixer) else ""
