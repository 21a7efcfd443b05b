"""Copying (EMNLP paper, section 3.2 and Table 1; Jelassi et al. 2024): repeat the text."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int32

from birdie_jax import vocabulary
from birdie_jax.objectives.example import Example
from birdie_jax.objectives.objective import Objective, surround
from birdie_jax.objectives.registry import register_objective


@register_objective
@dataclass(frozen=True, kw_only=True)
class Copying(Objective):
    """Context: marker, then the text; target: the text, END.

    The length of the text is drawn uniformly.
    """

    name: ClassVar[str] = "copying"
    draws_length: ClassVar[bool] = True

    marker: int | None = vocabulary.COPYING

    def example_length(self, count: int) -> int:
        """Return twice the text's length plus the marker and END."""
        return self.marker_length + 2 * count + 1

    def assemble(
        self, tokens: Int32[np.ndarray, " tokens"], rng: np.random.Generator, ends_document: bool
    ) -> Example:
        """Make the example. Nothing is random once the text is drawn."""
        return Example(surround(self.marker, tokens, None), surround(None, tokens, vocabulary.END))
