"""Mamba-2: a recurrence with one matrix per head (state-space duality), with a gate and a norm."""

import torch
from torch import nn
from torch.nn import functional

from .configuration_birdie import BirdieConfig
from .layers import MIXERS, Layout, ShortConvolution
from .matrix_state import read_matrices_both_ways

MAX_RATE_LOG = 80.0


class Mamba2(nn.Module):
    """Mamba-2's block (Dao and Gu 2024, section 7). For a head of P channels and the normalised input x_t:

        u_t = SiLU(conv(W_in x)_t + b)     z_t = W_z x_t
        B_t = SiLU(conv(W_B x)_t + b_B)    C_t = SiLU(conv(W_C x)_t + b_C)
        s_t = softplus(W_s x_t + b_s)      A = -exp(A_log)
        h_t = exp(s_t A) h_{t-1} + s_t u_t B_t^T
        y_t = W_out(RMSNorm((h_t C_t + D u_t) * SiLU(z_t)))

    The heads of a group share B and C. The norm is over the channels of a group.
    """  # noqa: D400, D415

    def __init__(
        self, config: BirdieConfig, head_features: int, state_size: int, groups: int, conv_width: int
    ):
        super().__init__()
        features, inner, heads = config.hidden_size, config.state, config.state // head_features
        of_groups = groups * state_size
        self.output_gate = nn.Linear(features, inner, bias=False)
        self.input = nn.Linear(features, inner, bias=False)
        self.input_convolution = ShortConvolution(inner, conv_width, bias=True)
        self.input_weights = nn.Linear(features, of_groups, bias=False)
        self.input_weights_convolution = ShortConvolution(of_groups, conv_width, bias=True)
        self.output_weights = nn.Linear(features, of_groups, bias=False)
        self.output_weights_convolution = ShortConvolution(of_groups, conv_width, bias=True)
        self.step = nn.Linear(features, heads, bias=False)
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.D = nn.Parameter(torch.ones(heads))
        self.step_bias = nn.Parameter(torch.zeros(heads))
        self.norm_scale = nn.Parameter(torch.ones(inner))
        self.out = nn.Linear(inner, features, bias=False)
        self.heads, self.groups, self.epsilon = heads, groups, config.norm_epsilon
        self.bidirectional = config.bidirectional

    def forward(self, x: torch.Tensor, layout: Layout, cache: dict | None = None) -> torch.Tensor:
        """Mix along the sequence; `cache` has this layer's state during decoding."""
        u = self.input_convolution(self.input(x), layout, cache, "tail")
        B = self.input_weights_convolution(self.input_weights(x), layout, cache, "B_tail")
        C = self.output_weights_convolution(self.output_weights(x), layout, cache, "C_tail")
        u, B, C = (functional.silu(part).float() for part in (u, B, C))
        # [rows, heads, length, channels].
        u = u.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        B, C = (
            part.unflatten(-1, (self.groups, -1))
            .transpose(1, 2)
            .repeat_interleave(self.heads // self.groups, 1)
            for part in (B, C)
        )
        steps = functional.softplus(self.step(x).float() + self.step_bias.float()).mT[..., None]
        rates = self.A_log.float().clamp(max=MAX_RATE_LOG).exp()[:, None, None]
        sequences = (C, B, steps * u, -rates * steps)
        y = read_matrices_both_ways(sequences, layout, self.bidirectional, cache)
        y = (y + self.D.float()[:, None, None] * u).transpose(1, 2).flatten(2)
        y = y * functional.silu(self.output_gate(x).float())
        groups = y.unflatten(-1, (self.groups, -1))
        groups = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + self.epsilon)
        return self.out((groups.flatten(-2) * self.norm_scale.float()).to(x.dtype))


MIXERS["Mamba2"] = Mamba2
