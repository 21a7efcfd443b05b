"""The recurrences with a matrix as the state of a head, computed in chunks of tokens."""

import torch

from .layers import Layout

# With a decay for each channel of the keys, a chunk needs chunk^2 numbers per channel.
MATRIX_CHUNK = 32


def weighted_products(a: torch.Tensor, b: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return sum_d a_id b_jd w_ijd; all d share one weight if the last axis of `weights` has size 1."""
    if weights.shape[-1] == 1:
        return (a @ b.mT) * weights[..., 0]
    return torch.einsum("...id,...jd,...ijd->...ij", a, b, weights)


def read_matrices(
    sequences: tuple[torch.Tensor, ...], reset: torch.Tensor, state: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return o_t = S_t^T q_t for every t, and the last S, for

        S_t = exp(g_t) S_{t-1} + k_t u_t^T        u_t = beta_t (v_t - k_t^T exp(g_t) S_{t-1})

    Without beta, u_t = v_t. Within a chunk, the u_t are the solution of a triangular system (Yang et al.
    2024, section 3.3).

    Args:
        sequences: q, k [rows, heads, length, d_k], v [rows, heads, length, d_v], g [rows, heads, length,
            d_k or 1], and optionally beta [rows, heads, length, 1].
        reset: [rows, length], whether no state enters a token from the token before it.
        state: [rows, heads, d_k, d_v], S before the first token; zero if None.
    """  # noqa: D400, D415
    q, k, v = (sequence.float() for sequence in sequences[:3])
    if state is None:
        state = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    outputs = []
    for first in range(0, q.shape[2], MATRIX_CHUNK):
        chunk = slice(first, first + MATRIX_CHUNK)
        q, k, v, g, *betas = (sequence[:, :, chunk].float() for sequence in sequences)
        cuts = reset[:, chunk].cumsum(1)[:, None]
        total = g.masked_fill(reset[:, None, chunk, None], 0).cumsum(2)
        sees = (cuts[..., None] == cuts[..., None, :]).tril()
        weights = (total[:, :, :, None] - total[:, :, None]).masked_fill(~sees[..., None], -torch.inf).exp()
        # `kept`: the decay of the earlier state at each token. `leaves`: the decay of each token to the
        # end of the chunk.
        kept = total.exp().masked_fill((cuts > 0)[..., None], 0)
        last, last_cut = total[:, :, -1:], cuts[..., -1:]
        leaves = (last - total).exp().masked_fill((cuts != last_cut)[..., None], 0)
        written = v
        if betas:
            system = betas[0] * weighted_products(k, k, weights)
            wanted = betas[0] * (v - (kept * k) @ state)
            # The solver reads the diagonal as 1 and the entries above it as 0.
            written = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
        outputs.append((kept * q) @ state + weighted_products(q, k, weights) @ written)
        state = kept[:, :, -1, :, None] * state + (leaves * k).mT @ written
    return torch.cat(outputs, 2), state


def read_matrices_both_ways(
    sequences: tuple[torch.Tensor, ...], layout: Layout, bidirectional: bool, cache: dict | None
) -> torch.Tensor:
    """Return the outputs of `read_matrices`; if `bidirectional`, half of the heads run in reverse.

    Args:
        sequences: as for `read_matrices`, of all heads.
        layout: the layout of the tokens.
        bidirectional: whether the second half of the heads runs in reverse.
        cache: this layer's state during decoding: the state of the forward heads.
    """
    state = None if cache is None else cache.get("state")
    if bidirectional:
        sequences, reverse = zip(*(sequence.chunk(2, 1) for sequence in sequences), strict=True)
    y, state = read_matrices(sequences, layout.forward_reset, state)
    if bidirectional:
        flipped = tuple(sequence.flip(2) for sequence in reverse)
        y = torch.cat([y, read_matrices(flipped, layout.reverse_reset.flip(1), None)[0].flip(2)], 1)
    if cache is not None:
        cache["state"] = state
    return y
