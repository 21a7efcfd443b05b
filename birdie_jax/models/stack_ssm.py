"""The cell STACK/SSM of "Pretraining Without Attention": state-space layers instead of attention."""

from typing import ClassVar

import flax.linen as nn

from birdie_jax.array_types import Activations
from birdie_jax.models.encoder_config import EncoderConfig, EncoderMixer
from birdie_jax.models.layout import Layout
from birdie_jax.models.registry import register_model
from birdie_jax.models.s4d import BidirectionalS4D


class StackSSM(EncoderMixer):
    """y = U_1 + U_2 of `BidirectionalS4D`: 4 D^2 weights, as in attention; an MLP follows.

    The paper has no equations for it, and there is no published code. The sum is BiGS without its gates.
    `combination` serial is the other reading of the paper's "two sequential blocks".
    """

    combination: ClassVar[str] = "sum"

    @nn.compact
    def mix(self, x: Activations, layout: Layout) -> Activations:
        """Return the update of the residual stream."""
        combination = self.config.section(EncoderConfig).combination or self.combination
        return BidirectionalS4D(self.config, combination, name="routing")(x, layout)


register_model("stack_ssm", mixer=StackSSM, config=EncoderConfig, has_mlp=True, encoder=True)
