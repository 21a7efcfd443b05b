"""One residual block of an encoder: norm and mixer, then, where the model has one, norm and MLP."""

import flax.linen as nn

from birdie_jax.array_types import Activations
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.dropout import RowKeys, dropout
from birdie_jax.models.encoder_layers import FeedForward, LayerNorm
from birdie_jax.models.layout import Layout
from birdie_jax.models.registry import Cache, architecture_of, mixer_type


class EncoderBlock(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)) where the model has a separate MLP.

    Attributes:
        config: the architecture.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Activations, cache: Cache | None, layout: Layout, row_keys: RowKeys | None = None
    ) -> tuple[Activations, Cache | None]:
        """Apply the block; arguments and results are those of `Block`."""
        config = self.config
        mixer = mixer_type(config).from_config(config, output_scale=1.0, name="mixer")
        mixed, cache = mixer(LayerNorm(config.norm_epsilon, name="mixer_norm")(x), layout, cache)
        x = x + dropout(mixed, config.dropout, row_keys, 0)
        if architecture_of(config).has_mlp:
            normalised = LayerNorm(config.norm_epsilon, name="mlp_norm")(x)
            x = x + dropout(FeedForward(config, name="mlp")(normalised), config.dropout, row_keys, 1)
        return x, cache
