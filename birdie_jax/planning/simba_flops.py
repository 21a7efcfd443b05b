"""FLOPs by Simba's count (Song et al. 2025); reproduces its tables 1, 2, 4 and 5.

The paper prints figures and no formula. This module counts one forward pass of a row of 2,048 tokens: 2
FLOPs for each product with a weight, 1 for the product with D, and the head on the tokens that the last
layer reads. It does not count convolution, scan, norms, gates or the scoring of tokens. Without the product
with D, one of 23 figures of Mamba and Simba differs in its last digit. Pythia's ten figures require its two
additions to the residual stream and its own vocabulary.

Table 4 is in 1e12 FLOPs, tables 1, 2 and 5 in 2^40, although all headings say 1e12.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

# The BiGS paper says that its figures are for a forward and a backward pass. They equal a forward pass of
# one row, without embeddings and head, with 5 times 2 L log2(2 L) FLOPs for an FFT of 2 L tokens.


def bigs_forward_flops(layers: int, features: int, length: int) -> float:
    """Return the FLOPs of a row in BiGS: its maps, and a convolution by FFT in each direction.

    Args:
        layers: the number of blocks.
        features: the width D of the residual stream; the inner width is 3 D.
        length: the tokens of the row.
    """
    maps = 13.0 * features**2 * 2 * length
    convolutions = 2 * features * 15 * length * log2(2 * length)
    return layers * (maps + convolutions)


def bert_forward_flops(layers: int, features: int, length: int) -> float:
    """Return the FLOPs of a row in BERT: its maps, and the two products of attention.

    Args:
        layers: the number of blocks.
        features: the width D of the residual stream; the inner width of the MLP is 4 D.
        length: the tokens of the row.
    """
    return layers * (12.0 * features**2 * 2 * length + 4.0 * length**2 * features)


VOCABULARY = 50_280
PYTHIA_VOCABULARY = 50_304
LENGTH = 2048


@dataclass(frozen=True)
class MambaSize:
    """A Mamba-1 model with an inner width of twice its features.

    Attributes:
        layers: the number of blocks.
        features: the width d of the residual stream.
        state: the number N of states of a channel.
    """

    layers: int
    features: int
    state: int = 16

    @property
    def layer_products(self) -> int:
        """The number of weights that multiply a token in a layer."""
        inner, rank = 2 * self.features, ceil(self.features / 16)
        return (
            2 * self.features * inner
            + inner * (rank + 2 * self.state)
            + rank * inner
            + inner * self.features
        )


MAMBA_SIZES = {
    "130m": MambaSize(24, 768),
    "370m": MambaSize(48, 1024),
    "790m": MambaSize(48, 1536),
    "1.4b": MambaSize(48, 2048),
    "2.8b": MambaSize(64, 2560),
}
"""The published sizes of Mamba."""

PYTHIA_SIZES = {
    "160m": (12, 768),
    "410m": (24, 1024),
    "1b": (16, 2048),
    "1.4b": (24, 2048),
    "2.8b": (32, 2560),
}
"""Layers and width of Pythia's sizes."""


def mamba_flops(size: MambaSize, shares: Sequence[float]) -> float:
    """Return the FLOPs of a row.

    Args:
        size: the model.
        shares: the share of the row's tokens that each layer reads, from `pruning.schedule`; all 1 for the
            dense model. Fractions of a token count too.
    """
    tokens = [LENGTH * share for share in shares]
    head = tokens[-1] * VOCABULARY * size.features
    skips = sum(tokens) * 2 * size.features
    return 2.0 * (sum(tokens) * size.layer_products + head) + skips


def pythia_flops(layers: int, features: int) -> float:
    """Return the FLOPs of a row in a model like Pythia, with the full square of attention."""
    maps = LENGTH * (12 * features**2 * layers + PYTHIA_VOCABULARY * features)
    residuals = 2.0 * LENGTH * features * layers
    return 2.0 * maps + 4.0 * LENGTH**2 * features * layers + residuals
