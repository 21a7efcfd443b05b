"""Causal language modelling (CLM; EMNLP paper, Table 1): write the text without a context."""

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
class CausalLM(Objective):
    """Empty context; the target is the text, followed by END if the document ends there."""

    name: ClassVar[str] = "causal_lm"
    has_context: ClassVar[bool] = False

    def example_length(self, count: int) -> int:
        """Return the length of the text plus END."""
        return count + 1

    def assemble(
        self, tokens: Int32[np.ndarray, " tokens"], rng: np.random.Generator, ends_document: bool
    ) -> Example:
        """Make the example. Nothing is random."""
        end = vocabulary.END if ends_document else None
        return Example(np.empty(0, np.int32), surround(None, tokens, end))
