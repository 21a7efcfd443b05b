"""Deshuffling (EMNLP paper, section 3.2 and Table 1): restore the order of shuffled tokens."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int32

from birdie_jax import vocabulary
from birdie_jax.objectives.checks import check_number
from birdie_jax.objectives.example import Example
from birdie_jax.objectives.objective import Objective, surround
from birdie_jax.objectives.registry import register_objective


@register_objective
@dataclass(frozen=True, kw_only=True)
class Deshuffling(Objective):
    """Context: marker, then the text with a share of its tokens shuffled; target: the original text, END.

    The objective chooses a share `rate` of the positions at random and permutes their tokens. It shuffles
    token ids, not characters, so context and target hold the same tokens. The paper's rates are 0.5 and
    1.0. The length of the text is drawn uniformly.

    Attributes:
        rate: share of the tokens to shuffle.
    """

    name: ClassVar[str] = "deshuffling"
    draws_length: ClassVar[bool] = True

    marker: int | None = vocabulary.DESHUFFLING
    rate: float = 1.0

    def __post_init__(self):
        allowed = "a number above 0 and at most 1"
        check_number(self.name, "rate", self.rate, allowed, lambda rate: 0 < rate <= 1)
        super().__post_init__()

    @property
    def structural_minimum(self) -> int:
        """Two, the fewest tokens that can be shuffled."""
        return 2

    def example_length(self, count: int) -> int:
        """Return twice the text's length plus the marker and END."""
        return self.marker_length + 2 * count + 1

    def assemble(
        self, tokens: Int32[np.ndarray, " tokens"], rng: np.random.Generator, ends_document: bool
    ) -> Example:
        """Make the example. The moved tokens and their new positions are random."""
        count = len(tokens)
        moved = round(count * self.rate)
        if moved == count:
            shuffled = rng.permutation(tokens)
        else:
            sources = rng.permutation(count)[:moved]
            shuffled = tokens.copy()
            shuffled[np.sort(sources)] = tokens[sources]
        return Example(surround(self.marker, shuffled, None), surround(None, tokens, vocabulary.END))
