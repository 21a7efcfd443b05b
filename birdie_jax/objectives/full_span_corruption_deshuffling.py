"""Full span corruption with deshuffling (FSC-D; EMNLP paper, section 3.2 and Table 1)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int32

from birdie_jax import vocabulary
from birdie_jax.objectives.example import Example
from birdie_jax.objectives.full_span_corruption import FullSpanCorruption
from birdie_jax.objectives.objective import surround
from birdie_jax.objectives.registry import register_objective


@register_objective
@dataclass(frozen=True, kw_only=True)
class FullSpanCorruptionDeshuffling(FullSpanCorruption):
    """Full span corruption, with the kept spans and the sentinels of the context in random order.

    Table 1 cuts "Bird songs fill the early morning air" into `Bird`, [mask], `the early`, [mask] and
    shows `the early`, [mask], `Bird`, [mask]. Only the order of the pieces changes, not the order of the
    tokens within a piece. Sentinels are numbered in the original order of their spans.
    """

    name: ClassVar[str] = "full_span_corruption_deshuffling"

    marker: int | None = vocabulary.FULL_SPAN_CORRUPTION_DESHUFFLING

    def assemble(
        self, tokens: Int32[np.ndarray, " tokens"], rng: np.random.Generator, ends_document: bool
    ) -> Example:
        """Make the example. The noise and the order of the pieces are random."""
        noise = self.draw_noise(len(tokens), rng)
        replaced = tokens.copy()
        replaced[noise.starts[1::2]] = noise.sentinels
        order = rng.permutation(len(noise.lengths))
        lengths = noise.lengths.copy()
        lengths[1::2] = 1
        lengths = lengths[order]
        ends = lengths.cumsum()
        source = (noise.starts[order] - ends + lengths).repeat(lengths)
        source += np.arange(len(source))
        context = surround(self.marker, replaced[source], None)
        return Example(context, surround(None, tokens, vocabulary.END))
