"""Prefix language modelling (PLM; EMNLP paper, Table 1): read the text's first part, write the rest."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int32

from birdie_jax import vocabulary
from birdie_jax.objectives.checks import check_fractions
from birdie_jax.objectives.example import Example
from birdie_jax.objectives.objective import Objective, surround
from birdie_jax.objectives.registry import register_objective

_MIN_TOKENS_PER_SIDE = 4


@register_objective
@dataclass(frozen=True, kw_only=True)
class PrefixLM(Objective):
    """Context: marker, then the first part of the text; target: the rest, and END if the document ends.

    The length of the first part is uniform over the integers within `prefix_fraction` of the text's length
    that leave at least 4 tokens on either side. The default, 0.5 to 1.0, is from the published code of
    November 2024. Its mean target is a quarter of the text, as in UL2's S-denoiser (Tay et al. 2023,
    Table 1).

    Attributes:
        prefix_fraction: the minimum and maximum share of the text in the context.
    """

    name: ClassVar[str] = "prefix_lm"

    marker: int | None = vocabulary.PREFIX_LM
    prefix_fraction: tuple[float, float] = (0.5, 1.0)

    def __post_init__(self):
        super().__post_init__()
        check_fractions(self.name, "prefix_fraction", self.prefix_fraction)

    @property
    def structural_minimum(self) -> int:
        """Four tokens on each side of the split."""
        return 2 * _MIN_TOKENS_PER_SIDE

    def example_length(self, count: int) -> int:
        """Return the text's length plus the marker and END."""
        return self.marker_length + count + 1

    def assemble(
        self, tokens: Int32[np.ndarray, " tokens"], rng: np.random.Generator, ends_document: bool
    ) -> Example:
        """Make the example. The split is random."""
        count = len(tokens)
        low, high = self.prefix_fraction
        furthest = count - _MIN_TOKENS_PER_SIDE
        first = min(max(math.ceil(low * count), _MIN_TOKENS_PER_SIDE), furthest)
        last = max(min(math.floor(high * count), furthest), first)
        split = int(rng.integers(first, last + 1))
        end = vocabulary.END if ends_document else None
        return Example(surround(self.marker, tokens[:split], None), surround(None, tokens[split:], end))
