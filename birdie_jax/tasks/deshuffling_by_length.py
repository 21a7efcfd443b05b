"""Deshuffling: put the tokens of a text back in order, by its length (Birdie paper, section 3.2)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from birdie_jax.config_types import Text
from birdie_jax.objectives import Objective, make_objective
from birdie_jax.storage import Bounds
from birdie_jax.tasks.objective_by_length import ObjectiveByLength
from birdie_jax.tasks.registry import register_task

Rate = Annotated[float, Bounds(more_than=0, at_most=1)]


@register_task
@dataclass(frozen=True, kw_only=True)
class DeshufflingByLength(ObjectiveByLength):
    """The passage is to be written in its order, in the format of the objective deshuffling.

    Attributes:
        rate: the share of the passage's tokens that is shuffled.
        source: where passages are read; random tokens have no order to be found again.
    """

    name: ClassVar[str] = "deshuffling_by_length"

    rate: Rate = 0.5
    source: Text = "stdlib"

    def __post_init__(self):
        if not self.source:
            raise ValueError("source: found ''; allowed: stdlib, a file, a folder, a glob or a URL")
        super().__post_init__()

    def objective(self, min_length: int, max_length: int) -> Objective:
        """Return deshuffling."""
        return make_objective("deshuffling", rate=self.rate, min_length=min_length, max_length=max_length)
