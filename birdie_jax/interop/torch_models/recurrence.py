"""The elementwise recurrence h_t = a_t * h_{t-1} + x_t in one or both directions."""

import torch

from .layers import Layout

CHUNK = 256


def resets_of_units(layout: Layout, units: int, bidirectional: bool) -> torch.Tensor:
    """Return whether the state of each unit resets at each token, for the second half in reverse.

    Args:
        layout: the layout of the tokens.
        units: the number of channels or heads.
        bidirectional: whether the second half of the units runs in reverse.
    """
    if not bidirectional:
        return layout.forward_reset[..., None].expand(-1, -1, units)
    halves = (layout.forward_reset, layout.reverse_reset)
    return torch.cat([reset[..., None].expand(-1, -1, units // 2) for reset in halves], -1)


def linear_scan(decay: torch.Tensor, entry: torch.Tensor, state: torch.Tensor | None) -> torch.Tensor:
    """Return h_t = decay_t * h_{t-1} + entry_t for every t, in float32.

    Each chunk uses a scan by doubling: after n steps, h_t includes the entries of the last 2^n tokens
    (Hillis and Steele 1986).

    Args:
        decay: [rows, length, ...].
        entry: [rows, length, ...].
        state: [rows, ...], h before the first token; zero if None.
    """
    parts = []
    for decays, entries in zip(decay.float().split(CHUNK, 1), entry.float().split(CHUNK, 1), strict=True):
        a, h = decays, entries
        if state is not None:
            h = torch.cat([h[:, :1] + a[:, :1] * state[:, None], h[:, 1:]], 1)
        shift = 1
        while shift < h.shape[1]:
            h = torch.cat([h[:, :shift], h[:, shift:] + a[:, shift:] * h[:, :-shift]], 1)
            a = torch.cat([a[:, :shift], a[:, shift:] * a[:, :-shift]], 1)
            shift *= 2
        state = h[:, -1]
        parts.append(h)
    return torch.cat(parts, 1)


def read_both_ways(
    decay: torch.Tensor, entry: torch.Tensor, bidirectional: bool, cache: dict | None
) -> torch.Tensor:
    """Return the states after each token.

    Args:
        decay: [rows, length, channels, ...], zero where the state resets.
        entry: of the same shape.
        bidirectional: whether the second half of the channels runs in reverse.
        cache: this layer's state during decoding: the state of the forward channels.
    """
    state = None if cache is None else cache.get("state")
    if not bidirectional:
        h = forward = linear_scan(decay, entry, state)
    else:
        (decay, reverse_decay), (entry, reverse_entry) = decay.chunk(2, 2), entry.chunk(2, 2)
        forward = linear_scan(decay, entry, state)
        # There are no tokens after the last one, so these channels start from zero.
        reverse = linear_scan(reverse_decay.flip(1), reverse_entry.flip(1), None).flip(1)
        h = torch.cat([forward, reverse], 2)
    if cache is not None:
        cache["state"] = forward[:, -1]
    return h
