"""BERT's self-attention: every token of a sample reads every other; positions come from the embeddings."""

import flax.linen as nn

from birdie_jax.array_types import Activations
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.attention import packed_attention
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.models.encoder_layers import dense, output_dense
from birdie_jax.models.layout import Layout


class SelfAttention(nn.Module):
    """y_t = W_out sum_s softmax_s(q_t . k_s / sqrt(w)) v_s, with q, k, v = W_q x, W_k x, W_v x.

    All four maps have a bias. The tokens s are those that `attention.packed_mask` lets t see: a whole
    sample where all of it is context. Each head has w channels.

    Attributes:
        config: the architecture.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Activations, layout: Layout) -> Activations:
        """Mix along the sequence, within the bounds of `layout`."""
        features, heads = self.config.features, self.config.section(EncoderConfig).attention_heads
        query, key, value = (
            dense(features, name, self.config)(x).reshape(*x.shape[:2], heads, features // heads)
            for name in ("query", "key", "value")
        )
        mixed = packed_attention(query, key, value, layout, bidirectional=True, implementation=None)
        return output_dense("out", self.config)(mixed.reshape(x.shape))
