"""The RG-LRU: the diagonal recurrence of Hawk, whose decay the input gates."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from birdie_jax.array_types import Key, RowState, StateSequence
from birdie_jax.models import matmul
from birdie_jax.models.layout import Layout
from birdie_jax.models.recurrence import ScanSettings, recurrent_layer
from pallas_kernels.gated_scan import RG_LRU

DECAY_SCALE = 8.0
RADIUS = (0.9, 0.999)


def uniform_on_ring(key: Key, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
    """Parameters p with exp(-softplus(p))^2 uniform between the squares of `RADIUS` (Griffin, 2.4)."""
    least, most = (radius**2 for radius in RADIUS)
    softplus = -jnp.log(jax.random.uniform(key, shape, dtype, least, most)) / 2
    return jnp.log(jnp.expm1(softplus))


class BlockDiagonal(nn.Module):
    """Linear map with bias in which each of `heads` groups of channels reads its own group only.

    Weights are normal with variance 1 / inputs of a group, kept in float32.
    """

    heads: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: StateSequence) -> StateSequence:
        """Map each position on its own."""
        width = x.shape[-1] // self.heads
        init = nn.initializers.variance_scaling(1.0, "fan_in", "normal", batch_axis=(0,))
        kernel = self.param("kernel", init, (self.heads, width, width), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros_init(), (x.shape[-1],), jnp.float32)
        groups = x.astype(self.dtype).reshape(*x.shape[:-1], self.heads, width)
        y = jnp.einsum("...hi,hij->...hj", groups, kernel.astype(self.dtype)).reshape(x.shape)
        return checkpoint_name(y, matmul.NAME) + bias.astype(self.dtype)


class RGLRU(nn.Module):
    """Real-Gated Linear Recurrent Unit (Griffin, De et al. 2024, section 2.4; Birdie, section 2 and E.3):

        r_t = sigmoid(W_a x_t + b_a)        log a_t = -8 r_t * softplus(lambda)
        i_t = sigmoid(W_x x_t + b_x)        h_t = a_t * h_{t-1} + sqrt(1 - a_t^2) * (i_t * x_t)

    Where a layout cuts the state, a_t counts as zero, and so in the root as well: the multiplier is 1. That
    is the first token of a sample in the forward half, and in the reverse half every token of the causal
    area, each the first that its own state sees. The last context token receives from the start token,
    and has the usual root. The rule reads the layout alone, so that a packed sample gives what it gives
    alone, a decoded token what it gives in the whole sequence, and both directions cost the same.

    Attributes:
        heads: groups of channels of the gates' block-diagonal maps.
        bidirectional: whether the second half of the channels runs in reverse.
        dtype: type of the gates' matrix products; the decay is computed in float32.
        scan_dtype: type of decays, entries and states where they go through memory; the carry is float32.
        scan_implementation: for `gated_scan`; None = the best one for the platform.
    """  # noqa: D400, D415

    heads: int
    bidirectional: bool
    dtype: jnp.dtype
    scan_dtype: jnp.dtype
    scan_implementation: str | None = None

    @nn.compact
    def __call__(
        self,
        x: StateSequence,
        layout: Layout,
        initial: Float[Array, "rows forward"] | None = None,
        output_gate: StateSequence | None = None,
    ) -> tuple[StateSequence, RowState]:
        """Return h, or GeLU(output_gate) * h, and the state after the last token that was read.

        Args:
            x: inputs, as wide as the state.
            layout: where information may flow.
            initial: state of the forward channels before the first token; zero if None.
            output_gate: projection of what gates the output, or None.
        """
        decay = self.param("decay", uniform_on_ring, x.shape[-1:], jnp.float32)
        recurrence_gate = BlockDiagonal(self.heads, self.dtype, name="recurrence_gate")(x)
        input_gate = BlockDiagonal(self.heads, self.dtype, name="input_gate")(x)
        return recurrent_layer(
            RG_LRU,
            (recurrence_gate, input_gate, x),
            output_gate,
            (-DECAY_SCALE * jax.nn.softplus(decay),),
            layout=layout,
            initial=initial,
            settings=ScanSettings(self.bidirectional, self.scan_dtype, self.scan_implementation),
        )
