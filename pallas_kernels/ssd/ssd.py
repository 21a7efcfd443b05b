"""The public operation: argument checks and the choice of an implementation."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pallas_kernels.matrix_state.arguments import (
    check_axes,
    check_choices,
    check_heads,
    check_resets,
    check_shapes,
)
from pallas_kernels.matrix_state.layer_token import LayerState, read_layer_token
from pallas_kernels.matrix_state.layout import read_sequence
from pallas_kernels.matrix_state.sequences import HeadSequences, ValueWeights

_NAME = "ssd"


def ssd(  # noqa: PLR0917 - the order of the papers' code, in which D may be left out
    x: Float[Array, "batch length heads P"],
    dt: Float[Array, "batch length heads"],
    A: Float[Array, " heads"],
    B: Float[Array, "batch length groups N"],
    C: Float[Array, "batch length groups N"],
    D: Float[Array, " heads"] | None = None,
    *,
    dt_bias: Float[Array, " heads"] | None = None,
    initial_state: Float[Array, "batch heads P N"] | None = None,
    resets: tuple[Bool[Array, "batch length"], ...] | None = None,
    direction: str = "forward",
    chunk_size: int = 256,
    implementation: str | None = None,
) -> tuple[Float[Array, "batch length heads P"], Float[Array, "batch heads P N"]]:
    """Scan a matrix of P x N a head, whose decay is one number (Dao and Gu 2024, sections 5 and 6):

        s_t = softplus(dt_t + dt_bias)            (without dt_bias: s_t = dt_t)
        h_t = exp(s_t A) h_{t-1} + s_t x_t B_t^T
        y_t = h_t C_t + D x_t

    The operation reads the sequence in chunks of matrix products. Their operands have the dtype of x (on
    a CPU float32), and their sums are float32. Steps, decays and the state are float32. The derivative
    keeps only the arguments; on a TPU it also keeps the state before each block of up to 16 chunks. It
    recomputes the states between chunks, and each chunk from its state.

    A token with s_t = 0 leaves the state unchanged; use such tokens as padding.

    Args:
        x: the input.
        dt: the step of each token and head.
        A: the rate of each head, negative.
        B: the weight of the input in each state; each group serves heads / groups consecutive heads.
        C: the weight of each state in the output, by group.
        D: the factor of the input in the output; None to omit the term.
        dt_bias: the bias of the step; if None, `dt` is the step and must not be negative.
        initial_state: the state before the first token in reading order; zero if None.
        resets: for each direction, the tokens where exp(s_t A) counts as zero.
        direction: "forward", "reverse" (reads the sequence from its end), or "both" (reads the second half
            of the heads in reverse).
        chunk_size: the largest number of tokens of a chunk, a power of two; the sequence can have any
            length. On a CPU, a chunk has at most sqrt(N P) tokens, or 16 if that is more. A chunk
            of the TPU's kernel has 128, and one of "pallas_gpu" 64.
        implementation: one of `IMPLEMENTATIONS`, or None for the best one for the target platform. By
            default, a TPU uses its kernel if the length is at least 128, P and N are at least 64, and P N,
            each rounded up to a multiple of 128, is at most 256 x 512 in bfloat16, 256 x 256 in float32.
            "pallas_gpu" runs only when chosen by name.

    Returns:
        (y, last state): y in the dtype of x; the state after the last token in reading order, in float32.

    Raises:
        ValueError: shapes or counts differ, an axis is empty, or a choice is unknown.
    """  # noqa: D400, D415
    check_choices(_NAME, direction, chunk_size, implementation)
    check_axes(_NAME, {"x": x, "B": B}, "[batch, length, heads or groups, features]")
    batch, length, heads, P = x.shape
    groups, N = B.shape[2:]
    wanted = [
        ("dt", dt, (batch, length, heads)),
        ("A", A, (heads,)),
        ("B", B, (batch, length, groups, N)),
        ("C", C, B.shape),
        ("D", D, (heads,)),
        ("dt_bias", dt_bias, (heads,)),
        ("initial_state", initial_state, (batch, heads, P, N)),
    ]
    check_shapes(_NAME, wanted)
    check_heads(_NAME, heads, groups, direction)
    check_resets(_NAME, resets, x.shape, direction)
    state = None if initial_state is None else initial_state.swapaxes(2, 3)
    sequences, values = _sequences(x, dt, A, (B, C), (D, dt_bias))
    y, last = read_sequence(
        *(sequences._replace(resets=resets), state, values),
        direction=direction,
        chunk_size=chunk_size,
        implementation=implementation,
    )
    return y, last.swapaxes(2, 3)


def read_ssd_token(
    token: tuple[Array, ...],
    vectors: tuple[Array, Array, Array],
    state: LayerState,
    *,
    resets: tuple[Bool[Array, "batch one"], ...] | None,
    implementation: str | None,
) -> tuple[Float[Array, "batch one heads P"], LayerState]:
    """Return y of a single token of one layer, and the state [batch, heads, P, N] after it; see `ssd`.

    Args:
        token: x, dt, B and C.
        vectors: A, D and dt_bias.
        state: the state before the token.
        resets: the forward reset, or None.
        implementation: as in `ssd`.
    """
    (x, dt, B, C), (A, D, dt_bias) = token, vectors
    sequences, values = _sequences(x, dt, A, (B, C), (D, dt_bias))
    sequences = values.scaled(sequences)._replace(resets=resets)
    y, state = read_layer_token(sequences, state, implementation=implementation, keys_last=True)
    return values.skipped(y, x), state


def _sequences(
    x: Array,
    dt: Array,
    A: Array,
    weights: tuple[Array, Array],
    of_heads: tuple[Array | None, Array | None],
) -> tuple[HeadSequences, ValueWeights]:
    """Return q = C, k = B, v = x and g = s A, without resets, and the weights s and D of v."""
    s, (B, C), (D, dt_bias) = dt.astype(jnp.float32), weights, of_heads
    if dt_bias is not None:
        s = jax.nn.softplus(s + dt_bias.astype(jnp.float32))
    values = ValueWeights(s, None if D is None else D.astype(jnp.float32))
    return HeadSequences(C, B, x, s * A.astype(jnp.float32), None, None), values
