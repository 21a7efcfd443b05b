"""Fill-in-the-middle (Bavarian et al. 2022), a causal objective: write the middle of a text last."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int32

from birdie_jax import vocabulary
from birdie_jax.objectives.checks import check_number
from birdie_jax.objectives.example import Example
from birdie_jax.objectives.objective import Objective
from birdie_jax.objectives.registry import register_objective

_PREFIX, _SUFFIX, _MIDDLE, _END = (
    np.array([token], np.int32)
    for token in (vocabulary.MIDDLE_PREFIX, vocabulary.MIDDLE_SUFFIX, vocabulary.MIDDLE, vocabulary.END)
)


@register_objective
@dataclass(frozen=True, kw_only=True)
class FillInTheMiddle(Objective):
    """Empty context; target: [PREFIX] prefix [SUFFIX] suffix [MIDDLE] middle END, with loss on all of it.

    The two cuts are uniform among those that leave at least one token in each part. A share
    `suffix_first_rate` of the examples has the suffix before the prefix. A share of one half is the
    joint training of Bavarian et al. 2022, section 3.

    Attributes:
        suffix_first_rate: probability of the order suffix, prefix, middle.
    """

    name: ClassVar[str] = "fill_in_the_middle"
    has_context: ClassVar[bool] = False

    suffix_first_rate: float = 0.5

    def __post_init__(self):
        allowed = "a number from 0 to 1"
        rate = self.suffix_first_rate
        check_number(self.name, "suffix_first_rate", rate, allowed, lambda rate: 0 <= rate <= 1)
        super().__post_init__()

    @property
    def structural_minimum(self) -> int:
        """One token for each of the three parts."""
        return 3

    def example_length(self, count: int) -> int:
        """Return the text's length plus three part tokens and END."""
        return count + 4

    def assemble(
        self, tokens: Int32[np.ndarray, " tokens"], rng: np.random.Generator, ends_document: bool
    ) -> Example:
        """Make the example. The two cuts and the order are random."""
        first, last = np.sort(rng.choice(len(tokens) - 1, 2, replace=False, shuffle=False)) + 1
        prefix = (_PREFIX, tokens[:first])
        suffix = (_SUFFIX, tokens[last:])
        outer = suffix + prefix if rng.random() < self.suffix_first_rate else prefix + suffix
        target = np.concatenate((*outer, _MIDDLE, tokens[first:last], _END))
        return Example(np.empty(0, np.int32), target)
