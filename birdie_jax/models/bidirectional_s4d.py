"""Two state-space layers, one in each direction, between maps of their own: what BiGS mixes tokens by."""

import flax.linen as nn

from birdie_jax.array_types import Activations
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.encoder_layers import dense, gelu, output_dense
from birdie_jax.models.layout import Layout
from birdie_jax.models.s4d import S4D


class BidirectionalS4D(nn.Module):
    """The forward and the backward layer, joined at the width of the residual stream:

        F = gelu(W_f x)        U_1 = W_u1 SSM_f(F)
        B = gelu(W_b x)        U_2 = W_u2 SSM_b(B)
        y = U_1 * U_2 (product), U_1 + U_2 (sum), or U_2 with B = gelu(W_b U_1) (serial)

    SSM_b reads from the end of the sample; the paper writes it as a layer between two reversals.

    Attributes:
        config: the architecture.
        combination: product, sum or serial.
    """  # noqa: D400, D415

    config: ModelConfig
    combination: str

    @nn.compact
    def __call__(self, x: Activations, layout: Layout) -> Activations:
        """Mix along the sequence, within the bounds of `layout`."""
        forward = self._one_direction("forward", x, layout)
        if self.combination == "serial":
            return self._one_direction("backward", forward, layout)
        backward = self._one_direction("backward", x, layout)
        return forward * backward if self.combination == "product" else forward + backward

    def _one_direction(self, name: str, x: Activations, layout: Layout) -> Activations:
        inputs = gelu(self.config, dense(self.config.features, f"{name}_in", self.config)(x))
        layer = S4D.from_config(self.config, reverse=name == "backward", name=f"{name}_ssm")
        return output_dense(f"{name}_out", self.config)(layer(inputs, layout))
