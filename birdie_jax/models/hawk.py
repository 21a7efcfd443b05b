"""Hawk's sequence mixer: a short convolution and an RG-LRU, gated."""

import flax.linen as nn
import jax.numpy as jnp

from birdie_jax.array_types import Activations
from birdie_jax.models.layers import ShortConvolution, projection
from birdie_jax.models.layout import Layout
from birdie_jax.models.recurrence import RecurrentCache, empty_recurrent_cache
from birdie_jax.models.rg_lru import RGLRU


class Hawk(nn.Module):
    """Recurrent block of Griffin and Hawk (De et al. 2024, section 2.3; Birdie, appendix E.3):

        y_t = W_out(GeLU(W_gate x_t) * RG-LRU(conv(W_in x))_t)

    No map has a bias but the RG-LRU's gates (E.3). The convolution starts near the identity, as that of
    Gated SSM+.

    Attributes:
        features: width D of input and output.
        state: recurrent channels N, even.
        heads: groups of the RG-LRU's block-diagonal gates, a divisor of `state`.
        conv_width: taps of the convolution.
        bidirectional: whether the second half of the state runs in reverse on the context.
        dtype: type of the matrix products.
        scan_dtype: type of decays, entries and states where they go through memory; the carry is float32.
        scan_implementation: for `gated_scan`; None = the best one for the platform.
        output_scale: multiplies the initial size of W_out.
    """  # noqa: D400, D415

    features: int
    state: int
    heads: int
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
        """Mix along the sequence; arguments and results are those of `GatedSSM`."""
        output_gate = projection(self.state, "output_gate", self.dtype)(x)
        entry = projection(self.state, "input", self.dtype)(x)
        initial, tail = (None, None) if cache is None else cache
        entry, tail = ShortConvolution(self.conv_width, self.dtype, "inner", name="convolution")(
            entry, layout, tail
        )
        y, last = RGLRU(
            self.heads,
            self.bidirectional,
            self.dtype,
            self.scan_dtype,
            self.scan_implementation,
            name="rg_lru",
        )(entry, layout, initial, output_gate)
        y = projection(self.features, "out", self.dtype, self.output_scale)(y)
        return y, None if cache is None else cache.after(last, tail)

    def empty_cache(self, rows: int, length: int | None = None) -> RecurrentCache:
        """Return the cache from which `rows` new samples start; its size is the same for every `length`."""
        del length
        return empty_recurrent_cache(
            rows,
            self.state // 2 if self.bidirectional else self.state,
            (self.conv_width - 1, self.state),
            self.dtype,
        )
