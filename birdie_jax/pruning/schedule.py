"""How many tokens each layer reads: the schedule of pruning (Simba, section 4)."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from jaxtyping import Array, Float

Share = float | Float[Array, "*tokens"]
"""A share of a sample's tokens, or one for each of some tokens."""


def linear_shares(keep: Share, layers: int) -> tuple[Share, ...]:
    """Return 1 - (1 - keep) l / L for layer l of L: the paper's, which the last layer does not reach."""
    return tuple(1 - (1 - keep) * layer / layers for layer in range(layers))


def constant_shares(keep: Share, layers: int) -> tuple[Share, ...]:
    """Return 1 for the first layer, which has to read all, and `keep` for the others."""
    return (1.0, *[keep] * (layers - 1))


SCHEDULES: Mapping[str, Callable[[Share, int], tuple[Share, ...]]] = MappingProxyType(
    {"linear": linear_shares, "constant": constant_shares}
)
"""The schedules by name: (share that is kept at the end, layers) -> the share that enters each layer."""


def check_shares(shares: Sequence[float], layers: int) -> str | None:
    """Return what is allowed in the place of a schedule of one's own; None where it is one."""
    falling = all(one >= other for one, other in pairwise(shares))
    if len(shares) == layers and shares[0] == 1 and falling and shares[-1] > 0:
        return None
    return f"{layers} shares, one a layer: 1 first, never rising, all above 0"


def kept_tokens(share: float, tokens: int, protected: int = 1) -> int:
    """Return how many of a sample's tokens enter a layer: the nearest number to its share.

    Args:
        share: the share that enters the layer.
        tokens: the number of the sample's tokens.
        protected: the number of them that are never dropped.
    """
    # Of two that are equally near the larger, as `samples.kept_mask` has it.
    return max(protected, int(share * tokens + 0.5))
