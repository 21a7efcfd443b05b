"""The small layers that blocks are made of: norm, projection, gated MLP, short convolution."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from birdie_jax.array_types import Activations, Key, LayerKeys, RowKeys, TokenIds
from birdie_jax.models.axes import constrained, dividing_axes, gathered, mesh_size
from birdie_jax.models.layout import Layout
from birdie_jax.models.parameters import ParameterPolicy, parameter
from birdie_jax.models.rematerialisation import MLP_PROJECTION, PROJECTION
from birdie_jax.models.sequence_parallel import sharded_convolution

# Each row has its own key, so its dropout mask does not depend on the mesh, the number of processes or the
# number of gradient accumulation steps.


def keys_of_layers(row_keys: RowKeys, layers: int) -> LayerKeys:
    """Return the key of each row in each of `layers` layers."""
    fold = jax.vmap(jax.random.fold_in, in_axes=(0, None))
    return jax.vmap(fold, in_axes=(None, 0))(row_keys, jnp.arange(layers))


def dropout(x: Activations, rate: float, row_keys: RowKeys | None, branch: int) -> Activations:
    """Return `x` with a share `rate` of its values zero and the others divided by 1 - rate.

    See Srivastava et al. 2014. Scaling happens in training, so inference needs no change.

    Args:
        x: the output of a branch of a block.
        rate: the probability that a value becomes zero.
        row_keys: the key of each row of `x` in this layer; None = return `x` unchanged.
        branch: the number of the branch within its block; each branch has its own mask.
    """
    if row_keys is None or rate == 0:
        return x

    def keep(key: Array) -> Array:
        return jax.random.bernoulli(jax.random.fold_in(key, branch), 1 - rate, x.shape[1:])

    return jnp.where(jax.vmap(keep)(row_keys), x / (1 - rate), jnp.zeros((), x.dtype))


# A CPU multiplies so few tokens up to twice as fast with the kernel on the left, if the kernel is
# transposed in memory. Otherwise XLA calls a library that packs the kernel again at every call. See
# `python -m benchmarks.few_tokens`, which measures this.
FEW_TOKENS = range(4, 33)
TRANSPOSED = "transposed"
"""The collection of `transposed_kernels`. A projection with a kernel here uses it on the left."""


def transposed_kernels(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the transposes of the kernels of one layer's parameters, by their paths."""
    found: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            found[name] = transposed_kernels(value)
        elif name == "kernel" and value.ndim == 2:
            found[name] = value.T
    return found


def kernel_first(
    x: Float[Array, "*batch inputs"],
    transposed: Float[Array, "outputs inputs"],
    dtype: DTypeLike | None = None,
) -> Float[Array, "*batch outputs"]:
    """Return x @ transposed.T, computed with the kernel on the left; None keeps the arguments' dtype."""
    dimensions = (((1,), (x.ndim - 1,)), ((), ()))
    y = jax.lax.dot_general(transposed, x, dimensions, preferred_element_type=dtype)
    # Without a barrier XLA merges this into one product with the rows first.
    return jnp.moveaxis(jax.lax.optimization_barrier(y), 0, -1)


# The usual derivative of x @ w computes (g^T x)^T. For it, XLA's CPU compiler writes a transposed copy of
# g, and computes again whatever is fused with g. As one product x^T g of two matrices, the same sums took
# half the time: `python -m benchmarks.projection_gradient`.


def matmul(
    x: Float[Array, "*batch inputs"], kernel: Float[Array, "inputs outputs"], name: str = PROJECTION
) -> Float[Array, "*batch outputs"]:
    """Return x @ kernel, named for rematerialisation; both arguments have the same type."""
    # A policy by primitive does not see a product inside a `custom_vjp` function.
    return checkpoint_name(_matmul(x, kernel), name)


@jax.custom_vjp
def _matmul(x: Array, kernel: Array) -> Array:
    return jax.lax.dot_general(x, kernel, (((x.ndim - 1,), (0,)), ((), ())))


def _forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _matmul(x, kernel), (x, kernel)


def _backward(residuals: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, kernel = residuals
    dx = jax.lax.dot_general(g, kernel, (((g.ndim - 1,), (1,)), ((), ())))
    # Merge the axes only on a CPU: merging rows and length would gather an array that a mesh divides.
    merged = _kernel_gradient if mesh_size("sequence") > 1 else _merged_kernel_gradient
    dkernel = jax.lax.platform_dependent(x, g, cpu=merged, default=_kernel_gradient)
    return dx, dkernel


def _kernel_gradient(x: Array, g: Array) -> Array:
    leading = tuple(range(x.ndim - 1))
    return jax.lax.dot_general(x, g, ((leading, leading), ((), ())))


def _merged_kernel_gradient(x: Array, g: Array) -> Array:
    return _kernel_gradient(x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1]))


_matmul.defvjp(_forward, _backward)


Initializer = Callable[..., Array]


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * (offset + scale), computed in float32 (Zhang and Sennrich 2019).

    Attributes:
        epsilon: the number added to the mean square.
        offset: the number added to the learned scale, which starts at 1 - offset.
    """

    epsilon: float = 1e-6
    offset: float = 0.0

    @nn.compact
    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
        """Return `x` with unit mean square times a learned scale, in the type of `x`."""
        # Whole on every device: gathering such a short vector costs more than its memory.
        policy = ParameterPolicy((None,), weight_decay=False)
        init = nn.initializers.constant(1 - self.offset)
        scale = parameter(self, "scale", init, (x.shape[-1],), policy)
        if self.offset:
            scale += self.offset
        x32 = x.astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self.epsilon)
        return (x32 * inverse * scale).astype(x.dtype)


class Projection(nn.Module):
    """y = W x, or W x + b; weights are random with variance `scale`^2 / inputs, b starts at 0.

    Attributes:
        features: the width of y.
        axes: the logical axes of the weights, inputs first.
        dtype: the type of the matrix product.
        scale: the factor of the initial size of the weights.
        distribution: the distribution of the initial weights, normal or uniform.
        bias: whether there is b.
        remat_name: the name of the product for rematerialisation.
    """

    features: int
    axes: tuple[str | None, str | None]
    dtype: jnp.dtype
    scale: float = 1.0
    distribution: Literal["normal", "uniform"] = "normal"
    bias: bool = False
    remat_name: str = PROJECTION

    @nn.compact
    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch features"]:
        """Map each token independently."""
        init = nn.initializers.variance_scaling(self.scale**2, "fan_in", self.distribution)
        policy = ParameterPolicy(self.axes, weight_decay=True, compute_dtype=self.dtype, hidden_matrix=True)
        x = x.astype(self.dtype)
        if self.has_variable(TRANSPOSED, "kernel"):
            y = kernel_first(x, self.get_variable(TRANSPOSED, "kernel").astype(self.dtype))
        else:
            kernel = parameter(self, "kernel", init, (x.shape[-1], self.features), policy)
            y = matmul(x, gathered(kernel, self.axes), self.remat_name)
        if self.bias:
            # Whole along the features of the residual stream, like the scales of norms.
            axis = "inner" if self.axes[1] == "inner" else None
            bias_policy = ParameterPolicy((axis,), weight_decay=False, compute_dtype=self.dtype)
            y += parameter(self, "bias", nn.initializers.zeros_init(), (self.features,), bias_policy)
        if y.ndim != 3:
            return y
        return constrained(y, "rows", "length", "inner" if self.axes[1] == "inner" else None)


def projection(
    features: int,
    name: str,
    dtype: jnp.dtype,
    scale: float = 1.0,
    *,
    bias: bool = False,
    remat_name: str = PROJECTION,
) -> Projection:
    """Return the projection `name` from the residual stream to the channels of a layer."""
    axes = ("features", "inner")
    return Projection(features, axes, dtype, scale, bias=bias, remat_name=remat_name, name=name)


def output_projection(
    features: int, name: str, dtype: jnp.dtype, scale: float = 1.0, *, bias: bool = False
) -> Projection:
    """Return the projection `name` from the channels of a layer back to the residual stream."""
    return Projection(features, ("inner", "features"), dtype, scale, bias=bias, name=name)


class GatedMLP(nn.Module):
    """y = W_out(GeLU(W_gate x) * W_in x), GEGLU (Shazeer 2020), or SwiGLU; optionally with biases.

    Attributes:
        inner: the width of W_gate x and W_in x.
        dtype: the type of the matrix products.
        output_scale: the factor of the initial size of W_out.
        bias: whether each of the maps has a bias.
        activation: "gelu", or "silu" for SwiGLU.
    """

    inner: int
    dtype: jnp.dtype
    output_scale: float = 1.0
    bias: bool = False
    activation: str = "gelu"

    @nn.compact
    def __call__(self, x: Activations) -> Activations:
        """Map each token independently."""
        activation = {"gelu": jax.nn.gelu, "silu": jax.nn.silu}[self.activation]
        inner = partial(projection, self.inner, dtype=self.dtype, bias=self.bias, remat_name=MLP_PROJECTION)
        gate = activation(inner("gate")(x))
        hidden = inner("in")(x)
        out = output_projection(x.shape[-1], "out", self.dtype, self.output_scale, bias=self.bias)
        return out(gate * hidden)


def _near_identity(key: Key, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
    """Return the identity plus small random taps; a fully random mix would blur adjacent tokens."""
    return nn.initializers.normal(0.1)(key, shape, dtype).at[0].add(1.0)


class ShortConvolution(nn.Module):
    """Causal depthwise convolution over `width` tokens that sees neither another sample nor padding.

    y[t] = sum over k < width of w[k] * x[t - k], where x[t - k] is zero unless t - k is in the sample of t.

    Attributes:
        width: the number of taps.
        dtype: the type of the products.
        channels: the logical axis of the channels (`birdie_jax.models.axes`).
        kernel_init: the initial taps, (key, shape, dtype) -> values.
        bias_init: the initial bias of each channel, as `kernel_init`; None = no bias.
    """

    width: int
    dtype: jnp.dtype
    channels: str | None = None
    kernel_init: Initializer = _near_identity
    bias_init: Initializer | None = None

    @nn.compact
    def __call__(
        self, x: Activations, layout: Layout, tail: Float[Array, "rows tail features"] | None = None
    ) -> tuple[Activations, Float[Array, "rows tail features"]]:
        """Convolve; `tail` holds the width - 1 inputs before this call (zeros if there are none).

        Returns:
            The convolved sequence, and the tail for the next call.
        """
        rows, length, features = x.shape
        policy = ParameterPolicy((None, None), weight_decay=True, compute_dtype=self.dtype)
        kernel = parameter(self, "kernel", self.kernel_init, (self.width, features), policy)
        x = x.astype(self.dtype)
        segments = layout.segment_ids
        # If this call continues a sample, the tail belongs to the first segment.
        continues = ~layout.forward_reset[:, :1] & (segments[:, :1] > 0)
        previous_segments = jnp.where(continues, segments[:, :1], -1)
        divided = tail is None and dividing_axes("length", length)
        if tail is None:
            tail = jnp.zeros((rows, self.width - 1, features), self.dtype)
        tail = tail.astype(self.dtype)
        previous_segments = jnp.broadcast_to(previous_segments, (rows, self.width - 1))
        if divided:
            y = sharded_convolution(_convolve, x, kernel, segments, channels=self.channels)
        else:
            y = _convolve(x, segments, tail, previous_segments, kernel)
        if self.bias_init is not None:
            bias_policy = ParameterPolicy((None,), weight_decay=False, compute_dtype=self.dtype)
            y += parameter(self, "bias", self.bias_init, (features,), bias_policy)
        extended = jnp.concatenate([tail, x], axis=1)
        extended_segments = jnp.concatenate([previous_segments, segments], axis=1)
        last_segment = segments[:, -1:]
        if layout.skipped is None:
            extended, extended_segments = extended[:, length:], extended_segments[:, length:]
        else:
            # The inputs up to the last token that is not skipped.
            kept = length - jnp.sum(layout.skipped, axis=1, dtype=jnp.int32)
            index = kept[:, None] + jnp.arange(self.width - 1, dtype=jnp.int32)[None]
            extended = jnp.take_along_axis(extended, index[..., None], axis=1)
            extended_segments = jnp.take_along_axis(extended_segments, index, axis=1)
            last_segment = jnp.take_along_axis(segments, jnp.maximum(kept - 1, 0)[:, None], axis=1)
        # A sample that began within the tail has no inputs before its first token.
        open_sample = (extended_segments == last_segment) & (last_segment > 0)
        if layout.skipped is not None:
            open_sample |= layout.skipped[:, :1]
        return y, jnp.where(open_sample[..., None], extended, 0)


def _convolution(
    x: Activations,
    segments: TokenIds,
    tail: Float[Array, "rows tail features"],
    previous_segments: Int[Array, "rows tail"],
    kernel: Float[Array, "width features"],
) -> Activations:
    """Convolve `x` after the width - 1 inputs of `tail`, within the samples."""
    y = x * kernel[0]
    for tap, earlier, same_sample in _earlier_inputs(x, segments, tail, previous_segments):
        y += jnp.where(same_sample, earlier * kernel[tap], 0)
    return y


def _earlier_inputs(
    x: Activations,
    segments: TokenIds,
    tail: Float[Array, "rows tail features"],
    previous_segments: Int[Array, "rows tail"],
) -> Iterator[tuple[int, Activations, Bool[Array, "rows length 1"]]]:
    """Yield each tap after the first, its inputs, and whether they are in the sample of the output."""
    before, length = tail.shape[1], x.shape[1]
    extended = jnp.concatenate([tail, x], axis=1)
    extended_segments = jnp.concatenate([previous_segments, segments], axis=1)
    for tap in range(1, before + 1):
        shifted = slice(before - tap, before - tap + length)
        same_sample = (extended_segments[:, shifted] == segments) & (segments > 0)
        yield tap, extended[:, shifted], same_sample[..., None]


_convolve = jax.custom_vjp(_convolution)


def _convolve_forward(*arguments: Any) -> tuple[Activations, tuple[Any, ...]]:
    return _convolution(*arguments), arguments


def _convolve_backward(arguments: tuple[Any, ...], dy: Activations) -> tuple[Array | None, ...]:
    """Return the cotangents, each tap's as a sum of its own.

    XLA fuses the derivative that JAX would take of the taps into one loop, ten times as slow on a CPU.
    """
    x, segments, tail, previous_segments, kernel = arguments

    def of_inputs(x: Activations, tail: Array) -> Activations:
        return _convolution(x, segments, tail, previous_segments, kernel)

    dx, dtail = jax.vjp(of_inputs, x, tail)[1](dy)
    taps = [jnp.sum(dy * x, axis=(0, 1))]
    for _, earlier, same_sample in _earlier_inputs(x, segments, tail, previous_segments):
        taps.append(jnp.sum(jnp.where(same_sample, dy * earlier, 0), axis=(0, 1)))
    return dx, None, dtail, None, jnp.stack(taps)


_convolve.defvjp(_convolve_forward, _convolve_backward)
