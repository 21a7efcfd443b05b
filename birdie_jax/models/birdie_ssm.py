"""The Minimalist Birdie SSM of the early draft: two maps into the state, one out of it."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from birdie_jax.array_types import Activations
from birdie_jax.models.layers import projection
from birdie_jax.models.layout import Layout
from birdie_jax.models.recurrence import (
    RecurrentCache,
    ScanSettings,
    empty_recurrent_cache,
    recurrent_layer,
)
from pallas_kernels.gated_scan import BIRDIE_SSM

INPUT_ACTIVATIONS = {
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "gelu": jax.nn.gelu,
    "identity": lambda x: x,
}


class BirdieSSM(nn.Module):
    """Minimalist SSM of Birdie's early draft (section 3.1), x_t the normalised input:

        z_t = tau(W_k x_t)        f_t = sigmoid(W_f x_t)
        h_t = f_t * h_{t-1} + z_t
        y_t = W_out h_t

    There is no bias, by the draft. It does not define tau, and beside it writes the logistic function with
    another letter. It sets the layer against Martin and Cundy's (2018), whose tau is the activation of what
    enters the state: tanh by default. Bounded, it lets a state with f = 1 grow no faster than the sequence.

    Where `bidirectional`, the second half of the channels runs in reverse on the context.

    Attributes:
        features: width D of input and output.
        state: recurrent channels N, even.
        input_activation: tau, one of `INPUT_ACTIVATIONS`.
        bidirectional: whether the second half of the state runs in reverse on the context.
        dtype: type of the matrix products.
        scan_dtype: type of decays, entries and states where they go through memory; the carry is float32.
        scan_implementation: for `gated_scan`; None = the best one for the platform.
        output_scale: multiplies the initial size of W_out.
    """  # noqa: D400, D415

    features: int
    state: int
    input_activation: str
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
        activation = INPUT_ACTIVATIONS[self.input_activation]
        entry = activation(projection(self.state, "input", self.dtype)(x))
        forget_gate = projection(self.state, "forget_gate", self.dtype)(x)
        y, last = recurrent_layer(
            BIRDIE_SSM,
            (entry, forget_gate),
            None,
            (),
            layout=layout,
            initial=None if cache is None else cache.state,
            settings=ScanSettings(self.bidirectional, self.scan_dtype, self.scan_implementation),
        )
        y = projection(self.features, "out", self.dtype, self.output_scale)(y)
        return y, None if cache is None else cache.after(last, cache.conv_tail)

    def empty_cache(self, rows: int, length: int | None = None) -> RecurrentCache:
        """Return the cache from which `rows` new samples start; its size is the same for every `length`."""
        del length
        channels = self.state // 2 if self.bidirectional else self.state
        return empty_recurrent_cache(rows, channels, (0, self.features), self.dtype)
