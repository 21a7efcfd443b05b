"""One residual block: norm and sequence mixer, then, where the model has one, norm and gated MLP."""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from birdie_jax.array_types import Activations
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.attention import Attention, KeysAndValues
from birdie_jax.models.birdie_ssm import BirdieSSM
from birdie_jax.models.gated_ssm import GatedSSM
from birdie_jax.models.hawk import Hawk
from birdie_jax.models.layers import GatedMLP, RMSNorm
from birdie_jax.models.layout import Layout
from birdie_jax.models.recurrence import RecurrentCache

Cache = RecurrentCache | KeysAndValues
Mixer = GatedSSM | Hawk | BirdieSSM | Attention


class Architecture(NamedTuple):
    """What a model's name stands for.

    Attributes:
        make_mixer: (config, **attributes of every mixer) -> its sequence mixer.
        has_mlp: whether a gated MLP follows it.
    """

    make_mixer: Callable[..., Mixer]
    has_mlp: bool


def _recurrent(config):
    """Return the attributes that every recurrent mixer has."""
    return {
        "state": config.state,
        "scan_dtype": jnp.dtype(config.scan_dtype),
        "scan_implementation": config.scan_implementation or None,
    }


def _gated_ssm(config, **attributes):
    return GatedSSM(conv_width=0, **_recurrent(config), **attributes)


def _gated_ssm_plus(config, **attributes):
    return GatedSSM(conv_width=config.conv_width, **_recurrent(config), **attributes)


def _hawk(config, **attributes):
    return Hawk(heads=config.heads, conv_width=config.conv_width, **_recurrent(config), **attributes)


def _birdie_ssm(config, **attributes):
    return BirdieSSM(input_activation=config.input_activation, **_recurrent(config), **attributes)


def _attention(config, **attributes):
    return Attention(
        heads=config.heads,
        kv_heads=config.kv_heads or config.heads,
        rope_base=config.rope_base,
        implementation=config.attention_implementation or None,
        **attributes,
    )


# The names are those of `birdie_jax.config.MODELS`.
ARCHITECTURES = {
    "gated_ssm_plus": Architecture(_gated_ssm_plus, has_mlp=True),
    "gated_ssm": Architecture(_gated_ssm, has_mlp=False),
    "gated_ssm_mlp": Architecture(_gated_ssm, has_mlp=True),
    "hawk": Architecture(_hawk, has_mlp=False),
    "hawk_mlp": Architecture(_hawk, has_mlp=True),
    "birdie_ssm": Architecture(_birdie_ssm, has_mlp=False),
    "transformer": Architecture(_attention, has_mlp=True),
}


def make_mixer(config: ModelConfig, **attributes) -> Mixer:
    """Return the sequence mixer that `config.name` asks for."""
    return ARCHITECTURES[config.name].make_mixer(
        config,
        features=config.features,
        bidirectional=config.bidirectional,
        dtype=jnp.dtype(config.dtype),
        output_scale=_residual_scale(config),
        **attributes,
    )


def _residual_scale(config: ModelConfig) -> float:
    """Keep the residual stream's variance independent of depth (GPT-2, section 2.3; Mamba likewise)."""
    branches = 2 if ARCHITECTURES[config.name].has_mlp else 1
    return (branches * config.layers) ** -0.5


class Block(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)) where the model has a separate MLP."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Activations, cache: Cache | None, layout: Layout
    ) -> tuple[Activations, Cache | None]:
        """Apply the block; argument order and result are those of `nn.scan` over layers."""
        config = self.config
        normalised = RMSNorm(config.norm_epsilon, name="mixer_norm")(x)
        mixed, cache = make_mixer(config, name="mixer")(normalised, layout, cache)
        x = x + mixed
        if ARCHITECTURES[config.name].has_mlp:
            normalised = RMSNorm(config.norm_epsilon, name="mlp_norm")(x)
            x = x + GatedMLP(
                config.mlp_features, jnp.dtype(config.dtype), _residual_scale(config), name="mlp"
            )(normalised)
        return x, cache
