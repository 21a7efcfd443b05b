"""One residual block: norm and sequence mixer, then, where the model has one, norm and gated MLP."""

import flax.linen as nn
import jax.numpy as jnp

from birdie_jax.array_types import Activations
from birdie_jax.config import ModelConfig
from birdie_jax.models.gated_ssm import GatedSSM, GatedSSMCache
from birdie_jax.models.layers import GatedMLP, RMSNorm
from birdie_jax.models.layout import Layout

WITH_MLP = ("gated_ssm_mlp", "gated_ssm_plus")
WITH_CONVOLUTION = ("gated_ssm_plus",)


def make_mixer(config: ModelConfig, **attributes) -> GatedSSM:
    """Return the sequence mixer that `config.name` asks for."""
    return GatedSSM(
        features=config.features,
        state=config.state,
        conv_width=config.conv_width if config.name in WITH_CONVOLUTION else 0,
        bidirectional=config.bidirectional,
        dtype=jnp.dtype(config.dtype),
        scan_dtype=jnp.dtype(config.scan_dtype),
        scan_implementation=config.scan_implementation or None,
        output_scale=_residual_scale(config),
        **attributes,
    )


def _residual_scale(config: ModelConfig) -> float:
    """Keep the residual stream's variance independent of depth (GPT-2, section 2.3; Mamba likewise)."""
    branches = 2 if config.name in WITH_MLP else 1
    return (branches * config.layers) ** -0.5


class Block(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)) where the model has a separate MLP."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Activations, cache: GatedSSMCache | None, layout: Layout
    ) -> tuple[Activations, GatedSSMCache | None]:
        """Apply the block; argument order and result are those of `nn.scan` over layers."""
        config = self.config
        normalised = RMSNorm(config.norm_epsilon, name="mixer_norm")(x)
        mixed, cache = make_mixer(config, name="mixer")(normalised, layout, cache)
        x = x + mixed
        if config.name in WITH_MLP:
            normalised = RMSNorm(config.norm_epsilon, name="mlp_norm")(x)
            x = x + GatedMLP(
                config.mlp_features, jnp.dtype(config.dtype), _residual_scale(config), name="mlp"
            )(normalised)
        return x, cache
