"""Hawk: a gated RG-LRU after a short convolution."""

import torch
from torch import nn
from torch.nn import functional

from .configuration_birdie import BirdieConfig
from .layers import MIXERS, Layout, ShortConvolution
from .recurrence import read_both_ways, resets_of_units

DECAY_SCALE = 8.0
MAX_ROOT_SLOPE = 1000.0


class BoundedSqrt(torch.autograd.Function):
    """The square root with a derivative of at most `MAX_ROOT_SLOPE` (Birdie paper, appendix E.3)."""

    @staticmethod
    def forward(context, x: torch.Tensor) -> torch.Tensor:
        """Return the root of `x`."""
        context.save_for_backward(x)
        return x.sqrt()

    @staticmethod
    def backward(context, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of `x`."""
        (x,) = context.saved_tensors
        return gradient * 0.5 * torch.rsqrt(x.clamp(min=1 / (2 * MAX_ROOT_SLOPE) ** 2))


class BlockDiagonal(nn.Module):
    """Linear map with bias; each of the `heads` groups of channels reads only its own group."""

    def __init__(self, channels: int, heads: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(heads, channels // heads, channels // heads))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map each token independently."""
        groups = x.unflatten(-1, self.weight.shape[:2])
        return torch.einsum("...hi,hoi->...ho", groups, self.weight).flatten(-2) + self.bias


class RGLRU(nn.Module):
    """Real-Gated Linear Recurrent Unit (Griffin, De et al. 2024, section 2.4):

        r_t = sigmoid(W_a x_t + b_a)        log a_t = -8 r_t * softplus(lambda)
        i_t = sigmoid(W_x x_t + b_x)        h_t = a_t * h_{t-1} + sqrt(1 - a_t^2) * (i_t * x_t)

    Where a state resets, a_t is 0 and the root is 1.
    """  # noqa: D400, D415

    def __init__(self, channels: int, heads: int, bidirectional: bool):
        super().__init__()
        self.decay = nn.Parameter(torch.zeros(channels))
        self.recurrence_gate = BlockDiagonal(channels, heads)
        self.input_gate = BlockDiagonal(channels, heads)
        self.bidirectional = bidirectional

    def forward(self, x: torch.Tensor, layout: Layout, cache: dict | None) -> torch.Tensor:
        """Return h in float32."""
        gate = torch.sigmoid(self.recurrence_gate(x).float())
        log_a = -DECAY_SCALE * functional.softplus(self.decay.float()) * gate
        entry = torch.sigmoid(self.input_gate(x).float()) * x.float()
        reset = resets_of_units(layout, x.shape[-1], self.bidirectional)
        multiplier = BoundedSqrt.apply(-torch.expm1(2 * log_a)).masked_fill(reset, 1)
        decay = log_a.exp().masked_fill(reset, 0)
        return read_both_ways(decay, multiplier * entry, self.bidirectional, cache)


class Hawk(nn.Module):
    """y = W_out(GeLU(W_g x) * RGLRU(conv(W_in x)))."""

    def __init__(self, config: BirdieConfig, heads: int, conv_width: int, bias: bool):
        super().__init__()
        self.output_gate = nn.Linear(config.hidden_size, config.state, bias=bias)
        self.input = nn.Linear(config.hidden_size, config.state, bias=bias)
        self.convolution = ShortConvolution(config.state, conv_width, bias)
        self.rg_lru = RGLRU(config.state, heads, config.bidirectional)
        self.out = nn.Linear(config.state, config.hidden_size, bias=bias)

    def forward(self, x: torch.Tensor, layout: Layout, cache: dict | None = None) -> torch.Tensor:
        """Mix along the sequence; `cache` has this layer's state during decoding."""
        gate = functional.gelu(self.output_gate(x).float(), approximate="tanh")
        u = self.convolution(self.input(x), layout, cache, "tail")
        return self.out((gate * self.rg_lru(u, layout, cache)).to(x.dtype))


MIXERS["Hawk"] = Hawk
