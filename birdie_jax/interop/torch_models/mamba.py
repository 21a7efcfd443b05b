"""Mamba: a gated selective scan after a short convolution."""

import torch
from torch import nn
from torch.nn import functional

from .configuration_birdie import BirdieConfig
from .layers import MIXERS, Layout, ShortConvolution
from .recurrence import read_both_ways, resets_of_units

MAX_A_LOG = 80.0


class Mamba(nn.Module):
    """Mamba's block (Gu and Dao 2023, sections 3.2 and 3.4). With the normalised input x_t:

    u_t = SiLU(conv(W_in x)_t + b)           z_t = W_z x_t
    [r_t, B_t, C_t] = W_x u_t                s_t = softplus(W_s r_t + b_s)
    h_t = exp(s_t A) h_{t-1} + s_t B_t u_t   A = -exp(A_log)
    y_t = W_out((C_t . h_t + D u_t) * SiLU(z_t))
    """  # noqa: D400, D415

    def __init__(self, config: BirdieConfig, state_size: int, rank: int, conv_width: int):
        super().__init__()
        features, inner = config.hidden_size, config.state
        self.output_gate = nn.Linear(features, inner, bias=False)
        self.input = nn.Linear(features, inner, bias=False)
        self.convolution = ShortConvolution(inner, conv_width, bias=True)
        self.selection = nn.Linear(inner, rank + 2 * state_size, bias=False)
        self.step = nn.Linear(rank, inner, bias=False)
        self.A_log = nn.Parameter(torch.zeros(inner, state_size))
        self.D = nn.Parameter(torch.ones(inner))
        self.step_bias = nn.Parameter(torch.zeros(inner))
        self.out = nn.Linear(inner, features, bias=False)
        self.sizes = [rank, state_size, state_size]
        self.bidirectional = config.bidirectional

    def forward(self, x: torch.Tensor, layout: Layout, cache: dict | None = None) -> torch.Tensor:
        """Mix along the sequence; `cache` has this layer's state during decoding."""
        u = functional.silu(self.convolution(self.input(x), layout, cache, "tail"))
        r, B, C = self.selection(u).split(self.sizes, -1)
        steps = functional.softplus(self.step(r).float() + self.step_bias.float())
        A = -self.A_log.float().clamp(max=MAX_A_LOG).exp()
        reset = resets_of_units(layout, u.shape[-1], self.bidirectional)[..., None]
        decay = (steps[..., None] * A).exp().masked_fill(reset, 0)
        entry = (steps * u.float())[..., None] * B.float()[:, :, None]
        h = read_both_ways(decay, entry, self.bidirectional, cache)
        y = (h * C.float()[:, :, None]).sum(-1) + self.D.float() * u.float()
        return self.out((y * functional.silu(self.output_gate(x).float())).to(x.dtype))


MIXERS["Mamba"] = Mamba
