"""Copying: how long a sequence a model can write again (Jelassi et al. 2024; Birdie paper, section 3.2)."""

from dataclasses import dataclass
from typing import ClassVar

from birdie_jax.objectives import Objective, make_objective
from birdie_jax.tasks.objective_by_length import ObjectiveByLength
from birdie_jax.tasks.registry import register_task


@register_task
@dataclass(frozen=True, kw_only=True)
class CopyingByLength(ObjectiveByLength):
    """The passage is to be written as it stands, in the format of the objective copying."""

    name: ClassVar[str] = "copying_by_length"

    def objective(self, min_length: int, max_length: int) -> Objective:
        """Return copying."""
        return make_objective("copying", min_length=min_length, max_length=max_length)
