"""Full span corruption (FSC; EMNLP paper, section 3.2): write the whole text, including the cut spans."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int32

from birdie_jax import vocabulary
from birdie_jax.objectives.example import Example
from birdie_jax.objectives.noise import NoisedObjective, noise_counts
from birdie_jax.objectives.objective import surround
from birdie_jax.objectives.registry import register_objective


@register_objective
@dataclass(frozen=True, kw_only=True)
class FullSpanCorruption(NoisedObjective):
    """Context: marker, then the text with sentinels for spans; target: the original text, END."""

    name: ClassVar[str] = "full_span_corruption"

    marker: int | None = vocabulary.FULL_SPAN_CORRUPTION

    def example_length(self, count: int) -> int:
        """Return the exact length of an example of `count` tokens."""
        noise, spans = noise_counts(count, self.rate, self.mean_span) if count >= 2 else (0, 0)
        return self.marker_length + count - noise + spans + count + 1

    def assemble(
        self, tokens: Int32[np.ndarray, " tokens"], rng: np.random.Generator, ends_document: bool
    ) -> Example:
        """Make the example. The lengths of the spans and of the gaps between them are random."""
        context = self.corrupt(tokens, self.draw_noise(len(tokens), rng))
        return Example(context, surround(None, tokens, vocabulary.END))
