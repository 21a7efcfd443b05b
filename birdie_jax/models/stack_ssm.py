"""The cell STACK/SSM of "Pretraining Without Attention": state-space layers in attention's place."""

from typing import ClassVar

import flax.linen as nn

from birdie_jax.array_types import Activations
from birdie_jax.models.encoder_config import EncoderConfig, EncoderMixer
from birdie_jax.models.layout import Layout
from birdie_jax.models.registry import register_model
from birdie_jax.models.s4d import BidirectionalS4D


class StackSSM(EncoderMixer):
    """y = U_1 + U_2 of `BidirectionalS4D`: 4 D^2 weights, as attention has; an MLP follows.

    The paper gives no equations of it, and no code of it is published. The sum is what BiGS has without its
    gates; `combination` serial is the other reading of its "two sequential blocks".
    """

    combination: ClassVar[str] = "sum"

    @nn.compact
    def mix(self, x: Activations, layout: Layout) -> Activations:
        """Return what the block adds to the residual stream."""
        combination = self.config.section(EncoderConfig).combination or self.combination
        return BidirectionalS4D(self.config, combination, name="routing")(x, layout)


register_model("stack_ssm", mixer=StackSSM, config=EncoderConfig, has_mlp=True, encoder=True)
