"""The small layers of encoders, as in BERT: with biases, and small normal initial weights."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from birdie_jax.array_types import Activations
from birdie_jax.config_sections import ModelConfig
from birdie_jax.models.attention import packed_attention
from birdie_jax.models.axes import constrained, gathered
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.models.layers import matmul
from birdie_jax.models.layout import Layout
from birdie_jax.models.parameters import ParameterPolicy, parameter
from birdie_jax.models.rematerialisation import MLP_PROJECTION, PROJECTION

SMALL = nn.initializers.normal(0.02)
"""The initial weights of a task's pooler (Devlin et al. 2018)."""


class LayerNorm(nn.Module):
    """(x - mean(x)) / sqrt(variance(x) + epsilon) * scale + bias, in float32 (Ba et al. 2016).

    Attributes:
        epsilon: the number added to the variance.
    """

    epsilon: float

    @nn.compact
    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
        """Return the normalised `x` in its own type."""
        policy, shape = ParameterPolicy((None,), weight_decay=False), (x.shape[-1],)
        scale = parameter(self, "scale", nn.initializers.ones_init(), shape, policy)
        bias = parameter(self, "bias", nn.initializers.zeros_init(), shape, policy)
        x32 = x.astype(jnp.float32)
        centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
        inverse = jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + self.epsilon)
        return (centred * inverse * scale + bias).astype(x.dtype)


class Dense(nn.Module):
    """y = W x + b.

    Attributes:
        features: the width of y.
        axes: the logical axes of the weights, inputs first.
        dtype: the type of the matrix product.
        init: the initial weights; biases start at 0.
        hidden: whether another layer reads y.
        remat_name: the name of the product for rematerialisation.
    """

    features: int
    axes: tuple[str | None, str | None]
    dtype: jnp.dtype
    init: nn.initializers.Initializer
    hidden: bool = True
    remat_name: str = PROJECTION

    @nn.compact
    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch features"]:
        """Map each token independently."""
        policy = ParameterPolicy(
            self.axes, weight_decay=True, compute_dtype=self.dtype, hidden_matrix=self.hidden
        )
        kernel = parameter(self, "kernel", self.init, (x.shape[-1], self.features), policy)
        # The residual stream is whole on every device, and so are its updates.
        channels = "inner" if self.axes[1] == "inner" else None
        policy = ParameterPolicy((channels,), weight_decay=False, compute_dtype=self.dtype)
        bias = parameter(self, "bias", nn.initializers.zeros_init(), (self.features,), policy)
        y = matmul(x.astype(self.dtype), gathered(kernel, self.axes), self.remat_name) + bias
        return constrained(y, "rows", "length", channels) if y.ndim == 3 else y


def dense(features: int, name: str, config: ModelConfig, *, remat_name: str = PROJECTION) -> Dense:
    """Return the map `name` from the residual stream to channels that `tensor` divides."""
    return _dense_of_block(features, ("features", "inner"), name, config, remat_name)


def output_dense(name: str, config: ModelConfig) -> Dense:
    """Return the map `name` from such channels back to the width of the residual stream."""
    return _dense_of_block(config.features, ("inner", "features"), name, config)


def _dense_of_block(
    features: int, axes: tuple[str, str], name: str, config: ModelConfig, remat_name: str = PROJECTION
) -> Dense:
    init = nn.initializers.normal(config.section(EncoderConfig).kernel_deviation)
    return Dense(features, axes, jnp.dtype(config.dtype), init, remat_name=remat_name, name=name)


def gelu(config: ModelConfig, x: Float[Array, "*batch channels"]) -> Float[Array, "*batch channels"]:
    """Return GELU(x) in the form that the config sets for blocks."""
    return jax.nn.gelu(x, approximate=config.section(EncoderConfig).activation == "tanh")


class FeedForward(nn.Module):
    """y = W_out GELU(W_in x + b_in) + b_out.

    Attributes:
        config: the architecture; `mlp_features` is the inner width.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Activations) -> Activations:
        """Map each token independently."""
        config = self.config
        inner = dense(config.mlp_features, "in", config, remat_name=MLP_PROJECTION)
        return output_dense("out", config)(gelu(config, inner(x)))


class SelfAttention(nn.Module):
    """y_t = W_out sum_s softmax_s(q_t . k_s / sqrt(w)) v_s, with q, k, v = W_q x, W_k x, W_v x.

    All four maps have a bias. `attention.packed_mask` selects the tokens s that t sees: the whole sample if
    all of it is context. Each head has w channels.

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
