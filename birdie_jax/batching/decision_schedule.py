"""The rule of which decision governs which step, for all who need it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DecisionSchedule:
    """When the mixture is decided, and which decision each batch is made under.

    Decision d is taken when d * `every_steps` steps are done, before the next one is trained. It governs
    the batches of the 0-based steps d * `every_steps` to (d + 1) * `every_steps` - 1. After the last step
    of the run nothing is left to decide.

    What happens at step 512, where every_steps = 512 and num_steps = 1300: when 512 steps are done, every
    arm is validated and decision 1 is taken. The batches of the 0-based steps 0 to 511 (the 1st to the
    512th) were made under decision 0; the next one, of 0-based step 512 (the 513th), is the first under
    decision 1. A checkpoint saved when 512 steps were done holds the state before decision 1: a run resumed
    from it has taken one decision, and takes decision 1 first. The run takes 3 decisions, after 0, 512 and
    1024 steps.

    Attributes:
        every_steps: the number of steps between two decisions, at least 1.
        num_steps: the number of steps of the whole run.
    """

    every_steps: int
    num_steps: int

    def __post_init__(self):
        if self.every_steps < 1:
            raise ValueError(
                f"decision schedule: every_steps: found {self.every_steps}; allowed: at least 1"
            )

    @property
    def num_decisions(self) -> int:
        """How many decisions the whole run takes: the number of steps at which `is_due` is true."""
        return -(-self.num_steps // self.every_steps)

    @property
    def num_mixtures(self) -> int:
        """How many decisions batches can ask for; `num_decisions`, or one more.

        Batches are made ahead of training, so the batch of 0-based step `num_steps` is asked for, though it
        is never trained on. Where `every_steps` divides `num_steps` it would begin another decision.
        """
        return self.num_steps // self.every_steps + 1

    def is_due(self, step: int) -> bool:
        """Tell whether a decision is taken when `step` steps are done."""
        return step % self.every_steps == 0 and step < self.num_steps

    def governing(self, step: int) -> int:
        """Return the decision under which the batch of the 0-based step `step` is made."""
        return step // self.every_steps

    def taken_before(self, first_step: int) -> int:
        """Return how many decisions a run has behind it that resumes when `first_step` steps are done."""
        return -(-first_step // self.every_steps)
