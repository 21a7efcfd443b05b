"""The small layers that blocks are made of: norm, projection, gated MLP, short convolution."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from birdie_jax.array_types import Activations
from birdie_jax.models import matmul
from birdie_jax.models.axes import constrained, dividing_axes, gathered, kernel_axes
from birdie_jax.models.layout import Layout
from birdie_jax.models.over_sequence import convolution_over_devices


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * scale, computed in float32 (Zhang and Sennrich 2019)."""

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
        """Return `x` with unit mean square times a learned scale, in the type of `x`."""
        scale = self.param("scale", nn.initializers.ones_init(), (x.shape[-1],), jnp.float32)
        x32 = x.astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self.epsilon)
        return (x32 * inverse * scale).astype(x.dtype)


def projection(features: int, name: str, dtype: jnp.dtype, scale: float = 1.0) -> nn.Dense:
    """Linear map without bias; weights are normal with variance `scale`^2 / inputs, kept in float32."""
    return nn.Dense(
        features,
        use_bias=False,
        dtype=dtype,
        param_dtype=jnp.float32,
        kernel_init=nn.initializers.variance_scaling(scale**2, "fan_in", "normal"),
        dot_general=partial(_product_on_mesh, kernel_axes(name)),
        name=name,
    )


def _product_on_mesh(axes, x, kernel, dimension_numbers, precision=None):
    y = matmul.dot_general(x, gathered(kernel, axes), dimension_numbers, precision)
    if y.ndim != 3:
        return y
    return constrained(y, "rows", "length", "inner" if axes[1] == "inner" else None)


class GatedMLP(nn.Module):
    """y = W_out(GeLU(W_gate x) * W_in x), Shazeer's GEGLU (2020)."""

    inner: int
    dtype: jnp.dtype
    output_scale: float = 1.0

    @nn.compact
    def __call__(self, x: Activations) -> Activations:
        """Map each position on its own."""
        gate = jax.nn.gelu(projection(self.inner, "gate", self.dtype)(x))
        hidden = projection(self.inner, "in", self.dtype)(x)
        return projection(x.shape[-1], "out", self.dtype, self.output_scale)(gate * hidden)


def _near_identity(key, shape, dtype=jnp.float32):
    """Start as the identity, with small taps into the past: a random mix would blur the tokens together."""
    return nn.initializers.normal(0.1)(key, shape, dtype).at[0].add(1.0)


class ShortConvolution(nn.Module):
    """Causal depthwise convolution over `width` tokens that sees neither another sample nor padding.

    y[t] = sum over k < width of w[k] * x[t - k], where x[t - k] counts as zero unless t - k is in the
    sample of t.

    Attributes:
        width: taps.
        dtype: type of the products.
        channels: logical axis of the channels (`birdie_jax.models.axes`).
    """

    width: int
    dtype: jnp.dtype
    channels: str | None = None

    @nn.compact
    def __call__(
        self, x: Activations, layout: Layout, tail: Float[Array, "rows tail features"] | None = None
    ) -> tuple[Activations, Float[Array, "rows tail features"]]:
        """Convolve; `tail` holds the width - 1 inputs before this call (zeros where there were none).

        Returns:
            The convolved sequence, and the tail for the call that continues it.
        """
        rows, length, features = x.shape
        kernel = self.param(
            "kernel",
            _near_identity,
            (self.width, features),
            jnp.float32,
        ).astype(self.dtype)
        x = x.astype(self.dtype)
        segments = layout.segment_ids
        # A token that continues another call belongs to the first segment of this one.
        continues = ~layout.forward_reset[:, :1] & (segments[:, :1] > 0)
        before = jnp.where(continues, segments[:, :1], -1)
        divided = tail is None and dividing_axes("length", length)
        if tail is None:
            tail = jnp.zeros((rows, self.width - 1, features), self.dtype)
        tail = tail.astype(self.dtype)
        before = jnp.broadcast_to(before, (rows, self.width - 1))
        if divided:
            y = convolution_over_devices(_convolve, x, kernel, segments, channels=self.channels)
        else:
            y = _convolve(x, segments, tail, before, kernel)
        # A sample that began within the tail has no inputs before its first token.
        extended = jnp.concatenate([tail, x], axis=1)
        extended_segments = jnp.concatenate([before, segments], axis=1)
        open_sample = (extended_segments[:, length:] == segments[:, -1:]) & (segments[:, -1:] > 0)
        return y, jnp.where(open_sample[..., None], extended[:, length:], 0)


def _convolve(x, segments, tail, segments_before, kernel):
    """Convolve `x`, before which come width - 1 inputs, all of them within their samples."""
    width, length = kernel.shape[0], x.shape[1]
    extended = jnp.concatenate([tail, x], axis=1)
    extended_segments = jnp.concatenate([segments_before, segments], axis=1)
    y = x * kernel[0]
    for k in range(1, width):
        shifted = slice(width - 1 - k, width - 1 - k + length)
        same_sample = (extended_segments[:, shifted] == segments) & (segments > 0)
        y += jnp.where(same_sample[..., None], extended[:, shifted] * kernel[k], 0)
    return y
