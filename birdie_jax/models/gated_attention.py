"""The cell GATED/attention of "Pretraining Without Attention": BiGS with attention for routing."""

from typing import ClassVar

import flax.linen as nn

from birdie_jax.array_types import Activations
from birdie_jax.models.encoder_config import EncoderConfig, EncoderMixer
from birdie_jax.models.encoder_layers import SelfAttention, dense, gelu, output_dense
from birdie_jax.models.layout import Layout
from birdie_jax.models.registry import register_model


class GatedAttention(EncoderMixer):
    """The layer of BiGS with `SelfAttention` instead of the two state-space layers:

        V = gelu(W_v x)        U = gelu(W_u SelfAttention(x))        y = W_o (U * V)

    It has the 13 D^2 weights of BiGS. The paper names the cell, but gives no equations.
    """  # noqa: D400, D415

    attends: ClassVar[bool] = True

    @nn.compact
    def mix(self, x: Activations, layout: Layout) -> Activations:
        """Return the update of the residual stream."""
        config = self.config
        routed = SelfAttention(config, name="attention")(x, layout)
        v = gelu(config, dense(config.mlp_features, "gate", config)(x))
        u = gelu(config, dense(config.mlp_features, "up", config)(routed))
        return output_dense("out", config)(u * v)


register_model("gated_attention", mixer=GatedAttention, config=EncoderConfig, encoder=True)
