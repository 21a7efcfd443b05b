"""Which decision of the bandit governs which train step: the rule, in one place."""

from typing import NamedTuple


class DecisionSchedule(NamedTuple):
    """Decision d is taken after step d * every_steps, and governs the every_steps batches that follow.

    Attributes:
        every_steps: the number of train steps between two decisions.
        num_steps: the number of train steps of the whole run.
    """

    every_steps: int
    num_steps: int

    def is_due(self, step: int) -> bool:
        """Whether a decision is taken when `step` train steps are done."""
        return step % self.every_steps == 0 and step < self.num_steps

    def governing(self, step: int) -> int:
        """Return the decision under which the batch of the 0-based train step `step` is made."""
        return step // self.every_steps

    def taken_before(self, first_step: int) -> int:
        """Return how many decisions a run that goes on from `first_step` has behind it."""
        return -(-first_step // self.every_steps)

    @property
    def num_decisions(self) -> int:
        """The number of decisions that are taken in the whole run."""
        return -(-self.num_steps // self.every_steps)

    @property
    def slots(self) -> int:
        """The number of mixtures that can be asked for while batches are made ahead of the last step."""
        return self.num_steps // self.every_steps + 1
