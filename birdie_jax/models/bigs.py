"""BiGS, the cell GATED/SSM of "Pretraining Without Attention": a bidirectional gated state-space layer."""

from typing import ClassVar

import flax.linen as nn

from birdie_jax.array_types import Activations
from birdie_jax.models.encoder_config import EncoderConfig, EncoderMixer
from birdie_jax.models.encoder_layers import dense, gelu, output_dense
from birdie_jax.models.layout import Layout
from birdie_jax.models.registry import register_model
from birdie_jax.models.s4d import BidirectionalS4D


class BiGS(EncoderMixer):
    """The layer of BiGS (section 4 of the paper) for a normalised input x:

        V = gelu(W_v x)
        U = gelu(W_u (U_1 * U_2))        U_1, U_2: `BidirectionalS4D`
        y = W_o (U * V)

    U and V have `mlp_features` channels, 3 D in the paper. The layer has 13 D^2 weights and no separate
    MLP.
    """  # noqa: D400, D415

    combination: ClassVar[str] = "product"

    @nn.compact
    def mix(self, x: Activations, layout: Layout) -> Activations:
        """Return the update of the residual stream."""
        config = self.config
        combination = config.section(EncoderConfig).combination or self.combination
        routed = BidirectionalS4D(config, combination, name="routing")(x, layout)
        v = gelu(config, dense(config.mlp_features, "gate", config)(x))
        u = gelu(config, dense(config.mlp_features, "up", config)(routed))
        return output_dense("out", config)(u * v)


register_model("bigs", mixer=BiGS, config=EncoderConfig, encoder=True)
