"""The mixtures that were decided, shared with every thread and process that makes batches under them."""

import mmap
import os
import tempfile
import time
import weakref
from typing import IO

import numpy as np
from jaxtyping import Float, Float64

_POLL_SECONDS = 0.001


class HistoryClosed(Exception):  # noqa: N818 - a message to the reader, not a fault
    """Training has ended; no further mixture will be published."""


class MixtureHistory:
    """Mixtures by decision number, shared with threads and worker processes of this machine.

    A batch must be made under the mixture that the newest decision before it chose, on every process and
    however far ahead batches are made. So a batch maker asks the history, which answers only when that
    decision is published. The history is a file that workers map, whatever way they were started; it is
    gone when the history is, even where its process was killed.
    """

    def __init__(self, num_arms: int, num_decisions: int):
        """Make an empty history for `num_decisions` mixtures of `num_arms` probabilities."""
        self._shape = (num_decisions, num_arms)
        # First the number of published mixtures (-1 once closed), then the mixtures.
        file, self._path = _create_anonymous_file()
        file.truncate(8 * (1 + num_decisions * num_arms))
        self._cells = np.frombuffer(mmap.mmap(file.fileno(), 0), np.float64)
        self._published = 0
        # Kept open until nobody can ask for it: a worker that starts late must not find another file there.
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
        # The count goes up last: a reader that sees it sees the whole mixture.
        self._cells[0] = self._published

    def wait_for(self, decision: int) -> Float64[np.ndarray, " arms"]:
        """Return the mixture of `decision`, as soon as it is published.

        Raises:
            HistoryClosed: the history was closed first.
        """
        arms = self._shape[1]
        while not 0 <= decision < self._cells[0]:
            if self._cells[0] < 0:
                raise HistoryClosed
            time.sleep(_POLL_SECONDS)
        begin = 1 + decision * arms
        return np.array(self._cells[begin : begin + arms])

    def close(self) -> None:
        """Tell all who wait that nothing more will come."""
        self._cells[0] = -1

    def __getstate__(self) -> tuple[tuple[int, int], str]:
        return self._shape, self._path

    def __setstate__(self, state: tuple[tuple[int, int], str]) -> None:
        self._shape, self._path = state
        with open(self._path, "rb") as file:
            self._cells = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.float64)


def _create_anonymous_file() -> tuple[IO[bytes], str]:
    """Return an empty file that ends with this process, and a path by which its workers can open it."""
    if hasattr(os, "memfd_create"):
        file = open(os.memfd_create("birdie_mixtures"), "r+b")  # noqa: SIM115 - the history closes it
        return file, f"/proc/{os.getpid()}/fd/{file.fileno()}"
    # Where there are no such files (macOS), one with a name, which a kill leaves behind.
    named = tempfile.NamedTemporaryFile(prefix="birdie_mixtures_")  # noqa: SIM115
    return named, named.name
