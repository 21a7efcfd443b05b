"""The Gated SSM."""

import torch
from torch import nn
from torch.nn import functional

from .configuration_birdie import BirdieConfig
from .layers import MIXERS, Layout, ShortConvolution
from .recurrence import read_both_ways, resets_of_units


class GatedSSM(nn.Module):
    """Gated SSM of the Birdie paper (section 3.4, appendix E.2). With the normalised input x_t:

        i_t = sigmoid(W_i x_t)        z_t = W_z x_t
        o_t = GeLU(W_o x_t)           f_t = sigmoid(W_f x_t + b_f)
        h_t = f_t * h_{t-1} + i_t * z_t
        y_t = W_out(o_t * h_t)

    With a convolution (Gated SSM+), i, z and f read a short convolution of x.
    """  # noqa: D400, D415

    def __init__(self, config: BirdieConfig, conv_width: int):
        super().__init__()
        features, state = config.hidden_size, config.state
        self.output_gate = nn.Linear(features, state, bias=False)
        self.input_gate = nn.Linear(features, state, bias=False)
        self.input = nn.Linear(features, state, bias=False)
        self.forget_gate = nn.Linear(features, state, bias=False)
        self.forget_bias = nn.Parameter(torch.zeros(state))
        self.out = nn.Linear(state, features, bias=False)
        self.convolution = ShortConvolution(features, conv_width, bias=False) if conv_width else None
        self.bidirectional = config.bidirectional

    def forward(self, x: torch.Tensor, layout: Layout, cache: dict | None = None) -> torch.Tensor:
        """Mix along the sequence; `cache` has this layer's state during decoding."""
        gate = functional.gelu(self.output_gate(x).float(), approximate="tanh")
        if self.convolution is not None:
            x = self.convolution(x, layout, cache, "tail")
        forget = torch.sigmoid(self.forget_gate(x).float() + self.forget_bias.float())
        reset = resets_of_units(layout, forget.shape[-1], self.bidirectional)
        entry = torch.sigmoid(self.input_gate(x).float()) * self.input(x).float()
        h = read_both_ways(forget.masked_fill(reset, 0), entry, self.bidirectional, cache)
        return self.out((gate * h).to(x.dtype))


MIXERS["GatedSSM"] = GatedSSM
