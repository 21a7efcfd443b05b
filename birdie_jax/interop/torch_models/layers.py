"""The common parts of the blocks: layout, norms, gated MLP and short convolution."""

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

MIXERS: dict[str, type[nn.Module]] = {}
"""The classes of the mixers by their names in `BirdieConfig.blocks`."""

ACTIVATIONS = {
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}


class Layout(NamedTuple):
    """The flow of information between the tokens of a call; all arrays are [rows, length].

    Attributes:
        given: whether a token is in the text, as opposed to padding.
        positions: the index of each token in its text.
        context: whether a token is in a context that the model reads in both directions.
        forward_reset: whether no state enters a token from its left.
        reverse_reset: whether no state enters a token from its right.
    """

    given: torch.Tensor
    positions: torch.Tensor
    context: torch.Tensor
    forward_reset: torch.Tensor
    reverse_reset: torch.Tensor


def make_layout(attention_mask: torch.Tensor, read: torch.Tensor, context_length: torch.Tensor) -> Layout:
    """Return the layout of rows with one text each.

    The last token of a context receives from the token on its right. The context receives from no other
    token outside it, so no information of an answer reaches it.

    Args:
        attention_mask: [rows, length], nonzero on the tokens of the text.
        read: [rows], the number of tokens of the text in earlier calls.
        context_length: [rows], the number of tokens of the context.
    """
    given = attention_mask.bool()
    positions = (read[:, None] + given.cumsum(1) - 1).clamp(min=0)
    # Reverse channels cannot return to the tokens of earlier calls.
    context = given & (positions < context_length[:, None]) & (read == 0)[:, None]
    next_given = functional.pad(given[:, 1:], (0, 1))
    forward_reset = ~given | (positions == 0)
    return Layout(given, positions, context, forward_reset, ~(context & next_given))


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * (offset + weight), computed in float32."""

    def __init__(self, features: int, epsilon: float, offset: float = 0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((features,), 1.0 - offset))
        self.epsilon, self.offset = epsilon, offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise `x` and multiply by the learned scale."""
        wide = x.float()
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return (wide * inverse * (self.weight.float() + self.offset)).to(x.dtype)


class GatedMLP(nn.Module):
    """y = W_out(activation(W_gate x) * W_up x)."""

    def __init__(self, features: int, inner: int, activation: str, bias: bool):
        super().__init__()
        self.gate = nn.Linear(features, inner, bias=bias)
        self.up = nn.Linear(features, inner, bias=bias)
        self.out = nn.Linear(inner, features, bias=bias)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map each token independently."""
        return self.out(self.activation(self.gate(x)) * self.up(x))


class ShortConvolution(nn.Module):
    """Causal convolution of each channel over the last `width` tokens, newest token's tap first."""

    def __init__(self, channels: int, width: int, bias: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels, width))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(self, x: torch.Tensor, layout: Layout, cache: dict | None, name: str) -> torch.Tensor:
        """Convolve; read and replace `cache[name]`, the last width - 1 inputs of earlier calls."""
        channels, width = self.weight.shape
        x = x.masked_fill(~layout.given[..., None], 0)
        tail = x.new_zeros(x.shape[0], width - 1, channels)
        if cache is not None:
            tail = cache.get(name, tail)
        extended = torch.cat([tail, x], 1)
        if cache is not None:
            cache[name] = extended[:, x.shape[1] :]
        taps = self.weight.flip(1)[:, None]
        return functional.conv1d(extended.transpose(1, 2), taps, self.bias, groups=channels).transpose(1, 2)
