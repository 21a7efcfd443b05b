"""The Minimalist Birdie SSM."""

import torch
from torch import nn

from .configuration_birdie import BirdieConfig
from .layers import ACTIVATIONS, MIXERS, Layout
from .recurrence import read_both_ways, resets_of_units


class BirdieSSM(nn.Module):
    """Minimalist SSM of Birdie's early draft (section 3.1). With the normalised input x_t:

    z_t = tau(W_k x_t)        f_t = sigmoid(W_f x_t)
    h_t = f_t * h_{t-1} + z_t
    y_t = W_out h_t
    """  # noqa: D400, D415

    def __init__(self, config: BirdieConfig, input_activation: str):
        super().__init__()
        self.input = nn.Linear(config.hidden_size, config.state, bias=False)
        self.forget_gate = nn.Linear(config.hidden_size, config.state, bias=False)
        self.out = nn.Linear(config.state, config.hidden_size, bias=False)
        self.tau = ACTIVATIONS[input_activation]
        self.bidirectional = config.bidirectional

    def forward(self, x: torch.Tensor, layout: Layout, cache: dict | None = None) -> torch.Tensor:
        """Mix along the sequence; `cache` has this layer's state during decoding."""
        z = self.tau(self.input(x))
        forget = torch.sigmoid(self.forget_gate(x).float())
        reset = resets_of_units(layout, forget.shape[-1], self.bidirectional)
        h = read_both_ways(forget.masked_fill(reset, 0), z, self.bidirectional, cache)
        return self.out(h.to(x.dtype))


MIXERS["BirdieSSM"] = BirdieSSM
