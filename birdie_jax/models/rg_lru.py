"""The RG-LRU: the diagonal recurrence of Hawk, with a decay that depends on the input."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from birdie_jax.array_types import Key, RowState, StateSequence
from birdie_jax.models.layout import Layout
from birdie_jax.models.parameters import ParameterPolicy, parameter
from birdie_jax.models.recurrence import ScanSettings, recurrent_layer
from birdie_jax.models.rematerialisation import PROJECTION
from pallas_kernels.gated_scan import Cell, bounded_sqrt, gelu, one_minus_square_of_exp, sigmoid

DECAY_SCALE = 8.0
RADIUS = (0.9, 0.999)


def uniform_on_ring(key: Key, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
    """Return p with exp(-softplus(p))^2 uniform between the squares of `RADIUS` (Griffin, section 2.4)."""
    min_square, max_square = (radius**2 for radius in RADIUS)
    softplus = -jnp.log(jax.random.uniform(key, shape, dtype, min_square, max_square)) / 2
    return jnp.log(jnp.expm1(softplus))


def _recurrence_inputs(
    parameters: tuple[Array, ...], operands: tuple[Array, ...], not_reset: Array | None
) -> tuple[Array, Array]:
    """Return a and b of h_t = a * h_{t-1} + b: a_t and sqrt(1 - a_t^2) * (i_t * x_t)."""
    (rate,) = parameters
    w_a_x, w_x_x, x = operands
    log_a = rate * sigmoid(w_a_x)
    multiplier = bounded_sqrt(one_minus_square_of_exp(log_a))
    if not_reset is not None:
        multiplier = jnp.where(not_reset, multiplier, 1.0)
    return jnp.exp(log_a), multiplier * (sigmoid(w_x_x) * x)


RG_LRU = Cell(
    name="rg_lru",
    operands=("recurrence_gate", "input_gate", "x"),
    # -8 softplus(lambda).
    parameters=("rate",),
    recurrence_inputs=_recurrence_inputs,
    readout=gelu,
    transcendentals=7,
    # r = 0, so a = 1; x = 0.
    identity_operands=(-1e4, 0.0, 0.0),
)
"""The recurrence of the RG-LRU with Hawk's output gate: see `RGLRU`."""


class BlockDiagonal(nn.Module):
    """Linear map with bias; each of `heads` groups of channels reads only its own group.

    Weights are normal with variance 1 / inputs of a group, stored in float32.

    Attributes:
        heads: the number of groups, a divisor of the number of channels.
        dtype: the type of the products.
    """

    heads: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: StateSequence) -> StateSequence:
        """Map each position independently."""
        width = x.shape[-1] // self.heads
        init = nn.initializers.variance_scaling(1.0, "fan_in", "normal", batch_axis=(0,))
        # An RG-LRU has no weight decay (Birdie paper, appendix A.1: Hawk's official settings).
        kernel_policy = ParameterPolicy(
            ("inner", None, None), weight_decay=False, compute_dtype=self.dtype, hidden_matrix=True
        )
        kernel = parameter(self, "kernel", init, (self.heads, width, width), kernel_policy)
        bias_policy = ParameterPolicy(("inner",), weight_decay=False, compute_dtype=self.dtype)
        bias = parameter(self, "bias", nn.initializers.zeros_init(), (x.shape[-1],), bias_policy)
        groups = x.astype(self.dtype).reshape(*x.shape[:-1], self.heads, width)
        # With the axes in the order of x, the einsum is up to three times as slow on a CPU.
        y = jnp.einsum("...hi,hij->h...j", groups, kernel)
        y = jnp.moveaxis(y, 0, -2).reshape(x.shape)
        return checkpoint_name(y, PROJECTION) + bias


class RGLRU(nn.Module):
    """Real-Gated Linear Recurrent Unit (Griffin, De et al. 2024, section 2.4; Birdie, section 2 and E.3):

        r_t = sigmoid(W_a x_t + b_a)        log a_t = -8 r_t * softplus(lambda)
        i_t = sigmoid(W_x x_t + b_x)        h_t = a_t * h_{t-1} + sqrt(1 - a_t^2) * (i_t * x_t)

    At a reset a_t is zero, also in the root, so the multiplier is 1. In the forward half this is the first
    token of a sample. In the reverse half it is every token of the causal area, as each of them starts a
    new state. The last context token receives state from the start token, so it has the usual root.

    The rule depends only on the layout. So a sample has the same result alone and packed, a token has the
    same result decoded and in a whole sequence, and both directions cost the same.

    Attributes:
        heads: the number of groups of channels in the gates' block-diagonal maps.
        bidirectional: whether the second half of the channels runs in reverse.
        dtype: the type of the gates' matrix products; the decay is computed in float32.
        scan_dtype: the type of the recurrence in memory; the carry is float32.
        scan_implementation: the implementation of `gated_scan`; None = the best one for the platform.
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
        """Return h, or GeLU(output_gate) * h, and the state after the last token it read.

        Args:
            x: the inputs, as wide as the state.
            layout: the resets.
            initial: the state of the forward channels before the first token; zero if None.
            output_gate: the projection of the output gate, or None.
        """
        policy = ParameterPolicy(("inner",), weight_decay=False)
        lambda_ = parameter(self, "decay", uniform_on_ring, x.shape[-1:], policy)
        recurrence_gate = BlockDiagonal(self.heads, self.dtype, name="recurrence_gate")(x)
        input_gate = BlockDiagonal(self.heads, self.dtype, name="input_gate")(x)
        return recurrent_layer(
            self,
            RG_LRU,
            (recurrence_gate, input_gate, x),
            output_gate,
            (-DECAY_SCALE * jax.nn.softplus(lambda_),),
            layout=layout,
            initial=initial,
            settings=ScanSettings(self.bidirectional, self.scan_dtype, self.scan_implementation),
        )
