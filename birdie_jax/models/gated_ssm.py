"""The Gated SSM: one sequence mixer, causal or bidirectional on the context."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

from birdie_jax.array_types import Activations, Key
from birdie_jax.models.layers import ShortConvolution, projection
from birdie_jax.models.layout import Layout
from birdie_jax.models.recurrence import (
    RecurrentCache,
    ScanSettings,
    empty_recurrent_cache,
    recurrent_layer,
)
from pallas_kernels.gated_scan import GATED_SSM


def slow_to_fast(key: Key, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
    """Biases with which a gate remembers for 2 to 200 tokens, log-uniform over the channels.

    Without them every f_t starts near 1/2, nothing is remembered beyond a few tokens, and no gradient
    tells the gates to remember more (Gers et al. 2000; Tallec and Ollivier 2018 for the spread).
    """
    timescale = jnp.exp(jax.random.uniform(key, shape, dtype, jnp.log(2.0), jnp.log(200.0)))
    return jnp.log(timescale - 1)


class GatedSSM(nn.Module):
    """Gated SSM of the Birdie paper (section 3.4, appendix E.2), x_t the normalised input:

        i_t = sigmoid(W_i x_t)        z_t = W_z x_t
        o_t = GeLU(W_o x_t)           f_t = sigmoid(W_f x_t + b_f)
        h_t = f_t * h_{t-1} + i_t * z_t
        y_t = W_out(o_t * h_t)

    The bias b_f is in appendix E.2, whose gates are Dense layers with one, and not in section 3.4; without
    it copying was not learned at all (BUILD_NOTES.md). The other maps have none, as the recipe has it.

    With `conv_width` (Gated SSM+) i, z and f read a short convolution of x; o reads x itself (E.2).
    Where `bidirectional`, the second half of the channels runs in reverse on the context (section 3.1):
    h_t = f_t * h_{t+1} + i_t * z_t, with f_t taken as zero in the causal area. Parameters and
    computation are those of the causal model.

    Attributes:
        features: width D of input and output.
        state: recurrent channels N, even.
        conv_width: taps of the convolution; 0 = none.
        bidirectional: whether the second half runs in reverse.
        dtype: type of the matrix products.
        scan_dtype: type of decays, entries and states where they go through memory; the carry is float32.
        scan_implementation: for `gated_scan`; None = the best one for the platform.
        output_scale: multiplies the initial size of W_out.
    """  # noqa: D400, D415

    features: int
    state: int
    conv_width: int
    bidirectional: bool
    dtype: jnp.dtype
    scan_dtype: jnp.dtype
    scan_implementation: str | None = None
    output_scale: float = 1.0

    @nn.compact
    def __call__(
        self, x: Activations, layout: Layout, cache: RecurrentCache | None = None
    ) -> tuple[Activations, RecurrentCache | None]:
        """Mix along the sequence.

        Args:
            x: normalised inputs.
            layout: the resets that keep samples, padding and the target's future apart.
            cache: state after an earlier part of the same samples, or `empty_cache` to start one.

        Returns:
            Outputs, and the cache that continues after the last token (None if none was given).
        """
        output_gate = projection(self.state, "output_gate", self.dtype)(x)
        initial, tail = (None, None) if cache is None else cache
        if self.conv_width:
            x, tail = ShortConvolution(self.conv_width, self.dtype, name="convolution")(x, layout, tail)
        forget_bias = self.param("forget_bias", slow_to_fast, (self.state,), jnp.float32)
        operands = tuple(
            projection(self.state, name, self.dtype)(x) for name in ("input_gate", "input", "forget_gate")
        )
        y, last = recurrent_layer(
            GATED_SSM,
            operands,
            output_gate,
            (forget_bias,),
            layout=layout,
            initial=initial,
            settings=ScanSettings(self.bidirectional, self.scan_dtype, self.scan_implementation),
        )
        y = projection(self.features, "out", self.dtype, self.output_scale)(y)
        return y, None if cache is None else cache.after(last, tail)

    def empty_cache(self, rows: int, length: int | None = None) -> RecurrentCache:
        """Return the cache from which `rows` new samples start; its size is the same for every `length`."""
        del length
        channels = self.state // 2 if self.bidirectional else self.state
        tail = (max(self.conv_width - 1, 0), self.features)
        return empty_recurrent_cache(rows, channels, tail, self.dtype)
