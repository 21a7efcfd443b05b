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

    If g has one number for each channel of the keys, this is Kimi Delta Attention (Kimi Team 2025, eq. 1):
    S~_t = diag(exp(g_t)) S_{t-1}.

    The operation reads the sequence in chunks of matrix products. Their operands have the dtype of v (on
    a CPU float32), and their sums are float32. Decays, the inverse of a chunk's triangular matrix and the
    state are float32. The derivative keeps only the arguments; on a TPU it also keeps the state before each
    block of up to 16 chunks. It recomputes the states between chunks, and each chunk from its state.

    A token with g_t = 0 and beta_t = 0 leaves the state unchanged; use such tokens as padding.

    Args:
        q: the queries; the caller scales them.
        k: the keys, of norm 1 or less: longer keys with beta above 1 make the state grow.
        v: the values; each head of q and k serves heads / key_heads consecutive heads.
        g: the logarithm of the decay, not positive.
        beta: the share of the old value that the new one replaces, between 0 and 2.
        initial_state: the state before the first token in reading order; zero if None.
        resets: for each direction, the tokens where exp(g_t) counts as zero.
        direction: "forward", "reverse" (reads the sequence from its end), or "both" (reads the second half
            of the heads in reverse).
        chunk_size: the largest number of tokens of a chunk, a power of two; the sequence can have any
            length. On a CPU, a chunk has at most sqrt(d_k d_v) tokens, or 16 if that is more. A
            chunk of the TPU's kernel has 128, and one of "pallas_gpu" 64.
        implementation: one of `IMPLEMENTATIONS`, or None for the best one for the target platform. By
            default, a TPU uses its kernel if the length is at least 128, keys and values have at least 64
            features, and d_k d_v, each rounded up to a multiple of 128, is at most 256 x 512 in bfloat16,
            256 x 256 in float32. "pallas_gpu" runs only when chosen by name. There is no kernel for decays
            by channel.

    Returns:
        (o, last state): o in the dtype of v; the state after the last token in reading order, in float32.

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
