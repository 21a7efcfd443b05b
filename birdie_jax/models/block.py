"""One residual block: norm and sequence mixer, then, where the model has one, norm and gated MLP."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from birdie_jax.array_types import Activations
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.dropout import RowKeys, dropout
from birdie_jax.models.layers import GatedMLP, RMSNorm
from birdie_jax.models.layout import Layout
from birdie_jax.models.registry import Cache, Mixer, architecture_of, mixer_type


def make_mixer(config: ModelConfig, **module: Any) -> Mixer:
    """Return the sequence mixer that `config.name` asks for; `module` are its linen name and parent."""
    mixer = mixer_type(config)
    return mixer.from_config(config, output_scale=_residual_scale(config), **module)


def _residual_scale(config: ModelConfig) -> float:
    """Return the scale that keeps the residual stream's variance independent of depth.

    GPT-2 has it (Radford et al. 2019, section 2.3), and Mamba.
    """
    branches = 2 if architecture_of(config).has_mlp else 1
    return (branches * config.layers) ** -0.5


class Block(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)) where the model has a separate MLP.

    Attributes:
        config: the architecture.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Activations, cache: Cache | None, layout: Layout, row_keys: RowKeys | None = None
    ) -> tuple[Activations, Cache | None]:
        """Apply the block; argument order and result are those of `nn.scan` over layers.

        Args:
            x: the residual stream.
            cache: what decoding carries; None in training.
            layout: the bounds of the samples.
            row_keys: the keys of dropout in this layer; None: there is none.
        """
        config = self.config
        # The residual stream may be of another type.
        dtype = jnp.dtype(config.dtype)
        normalised = RMSNorm(config.norm_epsilon, config.norm_offset, name="mixer_norm")(x).astype(dtype)
        mixed, cache = make_mixer(config, name="mixer")(normalised, layout, cache)
        x = x + dropout(mixed, config.dropout, row_keys, 0)
        if architecture_of(config).has_mlp:
            normalised = RMSNorm(config.norm_epsilon, config.norm_offset, name="mlp_norm")(x).astype(dtype)
            scale = _residual_scale(config)
            mlp = GatedMLP(config.mlp_features, dtype, scale, config.mlp_bias, name="mlp")
            x = x + dropout(mlp(normalised), config.dropout, row_keys, 1)
        return x, cache
