"""Span corruption (SC; EMNLP paper, Table 1; Raffel et al. 2020): write the spans that were cut out."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int32

from birdie_jax import vocabulary
from birdie_jax.objectives.example import Example
from birdie_jax.objectives.noise import NoisedObjective, noise_counts
from birdie_jax.objectives.registry import register_objective


@register_objective
@dataclass(frozen=True, kw_only=True)
class SpanCorruption(NoisedObjective):
    """Context: marker, then the text with sentinels for spans; target: sentinel, span, ..., END."""

    name: ClassVar[str] = "span_corruption"

    marker: int | None = vocabulary.SPAN_CORRUPTION

    def example_length(self, count: int) -> int:
        """Return the exact length of an example of `count` tokens, with two sentinels per span."""
        spans = noise_counts(count, self.rate, self.mean_span)[1] if count >= 2 else 0
        return self.marker_length + count + 2 * spans + 1

    def answer_special_tokens(self, context: Int32[np.ndarray, " context"]) -> tuple[int, ...]:
        """Return the sentinels of the context, and END."""
        special = context[context < vocabulary.NUM_SPECIAL_TOKENS]
        return (*special[special >= vocabulary.FIRST_SENTINEL].tolist(), vocabulary.END)

    def assemble(
        self, tokens: Int32[np.ndarray, " tokens"], rng: np.random.Generator, ends_document: bool
    ) -> Example:
        """Make the example. The lengths of the spans and of the gaps between them are random."""
        noise = self.draw_noise(len(tokens), rng)
        spans = len(noise.sentinels)
        noise_lengths = noise.lengths[1::2]
        sentinel_places = noise_lengths.cumsum() - noise_lengths + np.arange(spans)
        cut = tokens[noise.is_noise]
        target = np.empty(len(cut) + spans + 1, np.int32)
        is_text = np.ones(len(target), np.bool_)
        is_text[sentinel_places] = False
        is_text[-1] = False
        target[is_text] = cut
        target[sentinel_places] = noise.sentinels
        target[-1] = vocabulary.END
        return Example(self.corrupt(tokens, noise), target)
