"""Selective copying: find spans by what surrounds them, by length (Birdie paper, section 3.2)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from birdie_jax.objectives import Objective, make_objective
from birdie_jax.storage import Bounds
from birdie_jax.tasks.objective_by_length import ObjectiveByLength, PassageLength
from birdie_jax.tasks.registry import register_task

Spans = Annotated[int, Bounds(at_least=1, at_most=2**10)]


@register_task
@dataclass(frozen=True, kw_only=True)
class SelectiveCopyingByLength(ObjectiveByLength):
    """Spans of the passage are to be written, in the format of the objective selective_copying.

    Attributes:
        spans: the number of spans that are asked for; each takes 28 tokens of the passage at most.
        query_first: whether the queries stand before the passage.
        lengths: the numbers of tokens of the passages.
    """

    name: ClassVar[str] = "selective_copying_by_length"

    spans: Spans = 1
    query_first: bool = True
    lengths: tuple[PassageLength, ...] = (64, 128, 256, 512)

    def objective(self, min_length: int, max_length: int) -> Objective:
        """Return selective copying."""
        return make_objective(
            "selective_copying",
            spans=self.spans,
            query_first=self.query_first,
            min_length=min_length,
            max_length=max_length,
        )
