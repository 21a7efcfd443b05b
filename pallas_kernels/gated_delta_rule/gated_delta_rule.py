"""The public operation: argument checks and the choice of an implementation."""

from jaxtyping import Array, Bool, Float

from pallas_kernels.matrix_state.arguments import (
    check_axes,
    check_choices,
    check_heads,
    check_resets,
    check_shapes,
)
from pallas_kernels.matrix_state.layout import read_sequence
from pallas_kernels.matrix_state.sequences import HeadSequences

_NAME = "gated_delta_rule"


def gated_delta_rule(
    q: Float[Array, "batch length key_heads d_k"],
    k: Float[Array, "batch length key_heads d_k"],
    v: Float[Array, "batch length heads d_v"],
    g: Float[Array, "batch length heads *channels"],
    beta: Float[Array, "batch length heads"],
    *,
    initial_state: Float[Array, "batch heads d_k d_v"] | None = None,
    resets: tuple[Bool[Array, "batch length"], ...] | None = None,
    direction: str = "forward",
    chunk_size: int = 64,
    implementation: str | None = None,
) -> tuple[Float[Array, "batch length heads d_v"], Float[Array, "batch heads d_k d_v"]]:
    """Read and correct an associative memory, a matrix S of d_k x d_v a head (Yang et al. 2024, eq. 10):

        S~_t = exp(g_t) S_{t-1}
        S_t = S~_t + beta_t k_t (v_t - k_t S~_t)
        o_t = q_t S_t

    With g of one number for each channel of the keys it is Kimi Delta Attention (Kimi Team 2025, eq. 1):
    S~_t = diag(exp(g_t)) S_{t-1}.

    The sequence is read in chunks of matrix products, whose operands have the type of v and whose sums are
    float32; decays, the inverse of a chunk's triangular matrix and the state are float32. The derivative
    keeps the arguments alone: it computes the states between chunks again, and each chunk from its state.

    A token with g_t = 0 and beta_t = 0 leaves the state as it is, as padding must.

    Args:
        q: what reads the memory; the caller scales it.
        k: the keys, of norm 1 or less: longer keys with beta of more than 1 make the state grow.
        v: the values; each head of q and k serves as many heads in a row as there are values for it.
        g: the logarithm of the decay, not positive.
        beta: the share of the old value that is replaced, between 0 and 2.
        initial_state: the state before the first token read; zero if None.
        resets: for the direction, or for each of both, where exp(g_t) counts as zero.
        direction: "forward"; "reverse": the sequence is read from its end; "both": the second half of the
            heads is.
        chunk_size: tokens of a chunk, a power of two; any length is allowed.
        implementation: one of `IMPLEMENTATIONS`, or None for the best one on the platform compiled for. A
            TPU takes its kernel from 64 features of keys and values on; decays by channel have none.

    Returns:
        o in the type of v, and in float32 the state after the last token that was read.

    Raises:
        ValueError: shapes or counts differ, an axis is empty, or a choice is unknown.
    """  # noqa: D400, D415
    check_choices(_NAME, direction, chunk_size, implementation)
    check_axes(_NAME, {"k": k, "v": v}, "[batch, length, heads, features]")
    batch, length, heads, d_v = v.shape
    groups, d_k = k.shape[2:]
    of_heads = (batch, length, heads)
    state = (batch, heads, d_k, d_v)
    wanted = [
        ("k", k, (batch, length, groups, d_k)),
        ("q", q, k.shape),
        ("g", g, of_heads if g.ndim == 3 else (*of_heads, d_k)),
        ("beta", beta, of_heads),
        ("initial_state", initial_state, state),
    ]
    check_shapes(_NAME, wanted)
    check_heads(_NAME, heads, groups, direction)
    check_resets(_NAME, resets, v.shape, direction)
    sequences = HeadSequences(q, k, v, g, beta, resets)
    return read_sequence(
        *(sequences, initial_state),
        direction=direction,
        chunk_size=chunk_size,
        implementation=implementation,
    )
