"""The chosen mixtures, shared with every thread and process that makes batches."""

import mmap
import os
import tempfile
import time
import weakref
from dataclasses import dataclass
from typing import IO

import numpy as np
from jaxtyping import Float, Float64

from birdie_jax.errors import HistoryClosed


@dataclass(frozen=True)
class DecisionSchedule:
    """The steps at which mixtures are decided, and the decision that governs each batch.

    Decision d is taken when d * `every_steps` steps are done, before the next step. It governs the batches
    of the 0-based steps d * `every_steps` to (d + 1) * `every_steps` - 1. No decision is taken after the
    last step of the run.

    Example: every_steps = 512 and num_steps = 1300. When 512 steps are done, every arm is validated and
    decision 1 is taken. The batches of the 0-based steps 0 to 511 (the 1st to the 512th) were made under
    decision 0. The batch of 0-based step 512 (the 513th) is the first under decision 1. A checkpoint saved
    after 512 steps contains the state before decision 1: a run that resumes from it has taken one decision,
    and takes decision 1 first. The run takes 3 decisions, after 0, 512 and 1024 steps.

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
        """The number of decisions in the whole run, which is the number of steps where `is_due` is true."""
        return -(-self.num_steps // self.every_steps)

    @property
    def num_mixtures(self) -> int:
        """The number of decisions that batches can request: `num_decisions`, or one more.

        Batches are made ahead of training, so the batch of 0-based step `num_steps` is requested but never
        trained on. If `every_steps` divides `num_steps`, this batch belongs to one more decision.
        """
        return self.num_steps // self.every_steps + 1

    def is_due(self, step: int) -> bool:
        """Return whether a decision is taken when `step` steps are done."""
        return step % self.every_steps == 0 and step < self.num_steps

    def governing(self, step: int) -> int:
        """Return the decision that governs the batch of the 0-based step `step`."""
        return step // self.every_steps

    def taken_before(self, first_step: int) -> int:
        """Return how many decisions were taken before a run resumes at `first_step` done steps."""
        return -(-first_step // self.every_steps)


_POLL_SECONDS = 0.001


class MixtureHistory:
    """Mixtures by decision number, shared with threads and worker processes of this machine.

    Every batch must be made under the mixture of the decision that governs it, on every process and however
    far ahead batches are made. So a maker of batches waits until that decision is published here. The
    history is an anonymous file that workers map, whatever their start method. On Linux, the file
    disappears with the history, even if the process is killed.
    """

    def __init__(self, num_arms: int, num_decisions: int):
        """Create an empty history for `num_decisions` mixtures of `num_arms` probabilities."""
        self._shape = (num_decisions, num_arms)
        # Layout: the number of published mixtures (-1 once closed), then the mixtures.
        file, self._path = _create_anonymous_file()
        file.truncate(8 * (1 + num_decisions * num_arms))
        self._cells = np.frombuffer(mmap.mmap(file.fileno(), 0), np.float64)
        self._published = 0
        # Keep the file open: a worker that starts late opens it by its descriptor, so nothing may reuse it.
        weakref.finalize(self, file.close)

    def publish(self, mixture: Float[np.ndarray, " arms"]) -> None:
        """Add the next decision's mixture.

        Raises:
            ValueError: the history is full, or the mixture has another number of arms.
        """
        decisions, arms = self._shape
        if self._published >= decisions or mixture.shape != (arms,):
            raise ValueError(
                f"mixture history: found a mixture of {mixture.shape} as number {self._published}; "
                f"it holds {decisions} of {arms} arms"
            )
        begin = 1 + self._published * arms
        self._cells[begin : begin + arms] = mixture
        self._published += 1
        # Increase the count last: a reader that sees the new count sees the whole mixture.
        self._cells[0] = self._published

    def wait_for(self, decision: int) -> Float64[np.ndarray, " arms"]:
        """Wait until the mixture of `decision` is published, and return it.

        Raises:
            HistoryClosed: the history was closed before that.
        """
        arms = self._shape[1]
        while not 0 <= decision < self._cells[0]:
            if self._cells[0] < 0:
                raise HistoryClosed
            time.sleep(_POLL_SECONDS)
        begin = 1 + decision * arms
        return np.array(self._cells[begin : begin + arms])

    def close(self) -> None:
        """Close the history: every waiting call raises `HistoryClosed`."""
        self._cells[0] = -1

    def __getstate__(self) -> tuple[tuple[int, int], str]:
        return self._shape, self._path

    def __setstate__(self, state: tuple[tuple[int, int], str]) -> None:
        self._shape, self._path = state
        with open(self._path, "rb") as file:
            self._cells = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.float64)


def _create_anonymous_file() -> tuple[IO[bytes], str]:
    """Return an empty file that disappears with this process, and a path where workers can open it."""
    if hasattr(os, "memfd_create"):
        file = open(os.memfd_create("birdie_mixtures"), "r+b")  # noqa: SIM115 - the history closes it
        return file, f"/proc/{os.getpid()}/fd/{file.fileno()}"
    # Without memfd_create (macOS), use a named file, which remains if the process is killed.
    named = tempfile.NamedTemporaryFile(prefix="birdie_mixtures_")  # noqa: SIM115
    return named, named.name
