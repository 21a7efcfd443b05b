"""The cell STACK/attention of "Pretraining Without Attention": BERT with norms before the layers."""

from typing import ClassVar

import flax.linen as nn

from birdie_jax.array_types import Activations
from birdie_jax.models.encoder_config import EncoderConfig, EncoderMixer
from birdie_jax.models.encoder_layers import SelfAttention
from birdie_jax.models.layout import Layout
from birdie_jax.models.registry import register_model


class StackAttention(EncoderMixer):
    """`SelfAttention`; an MLP follows. This is the BERT of Izsak et al. 2021, the paper's baseline."""

    attends: ClassVar[bool] = True

    @nn.compact
    def mix(self, x: Activations, layout: Layout) -> Activations:
        """Return the update of the residual stream."""
        return SelfAttention(self.config, name="attention")(x, layout)


register_model("stack_attention", mixer=StackAttention, config=EncoderConfig, has_mlp=True, encoder=True)
