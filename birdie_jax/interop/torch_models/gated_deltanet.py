"""Gated DeltaNet: one associative memory per head, with gates that forget and the delta rule."""

import torch
from torch import nn
from torch.nn import functional

from .configuration_birdie import BirdieConfig
from .layers import MIXERS, Layout, RMSNorm, ShortConvolution
from .matrix_state import read_matrices_both_ways

UNIT_EPSILON = 1e-6
MAX_DECAY_LOG = 80.0


class GatedDeltaNet(nn.Module):
    """Gated DeltaNet (Yang et al. 2024, section 3.4). For a head and the normalised input x_t:

        q_t = d_k^(-1/2) L2(SiLU(conv(W_q x)_t))    k_t = L2(SiLU(conv(W_k x)_t))
        v_t = SiLU(conv(W_v x)_t)                   beta_t = sigmoid(W_b x_t)
        g_t = -exp(A_log) softplus(W_a x_t + b_a)
        S_t = (I - beta_t k_t k_t^T) exp(g_t) S_{t-1} + beta_t k_t v_t^T
        y_t = W_out(RMSNorm(S_t^T q_t) * SiLU(W_g x_t))

    where L2(x) = x / sqrt(sum x^2 + 1e-6). With `negative_eigenvalues`, beta_t is doubled. With
    `channel_decay`, g_t has a number for each channel of the keys, and W_a has the rank d_v.
    """  # noqa: D400, D415

    def __init__(  # noqa: PLR0917
        self,
        config: BirdieConfig,
        heads: int,
        key_heads: int,
        key_features: int,
        value_features: int,
        channel_decay: bool,
        negative_eigenvalues: bool,
        conv_width: int,
    ):
        super().__init__()
        features = config.hidden_size
        keys, values = key_heads * key_features, heads * value_features
        for name, channels in (("query", keys), ("key", keys), ("value", values)):
            setattr(self, name, nn.Linear(features, channels, bias=False))
            setattr(self, f"{name}_convolution", ShortConvolution(channels, conv_width, bias=False))
        self.beta = nn.Linear(features, heads, bias=False)
        decays = heads * key_features if channel_decay else heads
        self.decay_rank = nn.Linear(features, value_features, bias=False) if channel_decay else None
        self.decay = nn.Linear(value_features if channel_decay else features, decays, bias=False)
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.step_bias = nn.Parameter(torch.zeros(decays))
        self.output_norm = RMSNorm(value_features, config.norm_epsilon)
        self.output_gate = nn.Linear(features, values, bias=False)
        self.out = nn.Linear(values, features, bias=False)
        self.heads, self.key_heads = heads, key_heads
        self.largest_beta = 2.0 if negative_eigenvalues else 1.0
        self.bidirectional = config.bidirectional

    def forward(self, x: torch.Tensor, layout: Layout, cache: dict | None = None) -> torch.Tensor:
        """Mix along the sequence; `cache` has this layer's state during decoding."""
        q, k, v = (
            self._by_head(self._convolved(name, x, layout, cache), heads)
            for name, heads in (("query", self.key_heads), ("key", self.key_heads), ("value", self.heads))
        )
        q, k = (
            (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + UNIT_EPSILON)).repeat_interleave(
                self.heads // self.key_heads, 1
            )
            for part in (q, k)
        )
        beta = self.largest_beta * torch.sigmoid(self._by_head(self.beta(x), self.heads))
        ranked = x if self.decay_rank is None else self.decay_rank(x)
        steps = functional.softplus(self.decay(ranked).float() + self.step_bias.float())
        rates = self.A_log.float().clamp(max=MAX_DECAY_LOG).exp()[:, None, None]
        sequences = (q * q.shape[-1] ** -0.5, k, v, -rates * self._by_head(steps, self.heads), beta)
        o = read_matrices_both_ways(sequences, layout, self.bidirectional, cache)
        o = self.output_norm(o).transpose(1, 2).flatten(2)
        return self.out((o * functional.silu(self.output_gate(x).float())).to(x.dtype))

    def _convolved(self, name: str, x: torch.Tensor, layout: Layout, cache: dict | None) -> torch.Tensor:
        convolution = getattr(self, f"{name}_convolution")
        return functional.silu(convolution(getattr(self, name)(x), layout, cache, f"{name}_tail"))

    @staticmethod
    def _by_head(x: torch.Tensor, heads: int) -> torch.Tensor:
        """Return `x`, [rows, length, heads * channels], as [rows, heads, length, channels] in float32."""
        return x.float().unflatten(-1, (heads, -1)).transpose(1, 2)


MIXERS["GatedDeltaNet"] = GatedDeltaNet
