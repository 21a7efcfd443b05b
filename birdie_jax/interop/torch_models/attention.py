"""Attention with rotary positions, unmasked on the context."""

import torch
from torch import nn
from torch.nn import functional

from .configuration_birdie import BirdieConfig
from .layers import MIXERS, Layout


def rotate(x: torch.Tensor, positions: torch.Tensor, base: float, share: float) -> torch.Tensor:
    """Rotate channels i and i + width / 2 of each head by position * base^(-2 i / width).

    Args:
        x: [rows, heads, length, channels].
        positions: [rows, length].
        base: the base of the rotary frequencies.
        share: the share of channels to rotate, from the first; `width` is their number.
    """
    width = round(share * x.shape[-1])
    turned, rest = x.float().split([width, x.shape[-1] - width], -1)
    frequencies = base ** (-torch.arange(width // 2, device=x.device, dtype=torch.float32) / (width // 2))
    angles = positions[:, None, :, None].float() * frequencies
    first, second = turned.chunk(2, -1)
    cosine, sine = angles.cos(), angles.sin()
    turned = torch.cat([first * cosine - second * sine, second * cosine + first * sine, rest], -1)
    return turned.to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention, for each head of width w:

        q_t, k_t, v_t = R_t W_q x_t, R_t W_k x_t, W_v x_t
        y_t = W_out sum_s softmax_s(q_t . k_s / sqrt(w)) v_s

    over the tokens s up to t and, if `bidirectional`, over the whole context. With a window, only over
    tokens at a distance less than its width.
    """  # noqa: D400, D415

    def __init__(  # noqa: PLR0917
        self,
        config: BirdieConfig,
        heads: int,
        kv_heads: int,
        rope_base: float,
        window: int,
        rotary_share: float,
        output_bias: bool,
    ):
        super().__init__()
        features, width = config.hidden_size, config.hidden_size // heads
        self.query = nn.Linear(features, heads * width, bias=False)
        self.key = nn.Linear(features, kv_heads * width, bias=False)
        self.value = nn.Linear(features, kv_heads * width, bias=False)
        self.out = nn.Linear(features, features, bias=output_bias)
        self.width, self.window = width, window
        self.rope_base, self.rotary_share = rope_base, rotary_share
        self.bidirectional = config.bidirectional

    def forward(self, x: torch.Tensor, layout: Layout, cache: dict | None = None) -> torch.Tensor:
        """Mix along the sequence; `cache` has this layer's state during decoding."""
        query, key, value = (
            part.unflatten(-1, (-1, self.width)).transpose(1, 2)
            for part in (self.query(x), self.key(x), self.value(x))
        )
        query, key = (
            rotate(part, layout.positions, self.rope_base, self.rotary_share) for part in (query, key)
        )
        given = layout.given
        if cache is not None:
            if "keys" in cache:
                key = torch.cat([cache["keys"], key], 2)
                value = torch.cat([cache["values"], value], 2)
                given = torch.cat([cache["given"], given], 1)
            # With a window, later tokens do not attend to earlier slots.
            kept = max(0, given.shape[1] - self.window + 1) if self.window else 0
            cache["keys"], cache["values"], cache["given"] = (
                key[:, :, kept:],
                value[:, :, kept:],
                given[:, kept:],
            )
        groups = query.shape[1] // key.shape[1]
        mixed = functional.scaled_dot_product_attention(
            query,
            key.repeat_interleave(groups, 1),
            value.repeat_interleave(groups, 1),
            attn_mask=self._mask(layout, given)[:, None],
        )
        return self.out(mixed.transpose(1, 2).flatten(-2))

    def _mask(self, layout: Layout, given: torch.Tensor) -> torch.Tensor:
        """Return whether each token of the call may attend to each token of `given`.

        The mask has the shape [rows, length, slots].
        """
        length, slots = layout.given.shape[1], given.shape[1]
        slot = torch.arange(slots, device=given.device)
        own = slot[slots - length :, None]
        seen = (slot <= own)[None]
        if self.bidirectional:
            context = functional.pad(layout.context, (slots - length, 0))
            seen = seen | context[:, None]
        seen = seen & given[:, None]
        if self.window:
            seen = seen & ((slot - own).abs() < self.window)
        # Padding attends to itself, so no softmax is empty.
        return seen | (slot == own)


MIXERS["Attention"] = Attention
