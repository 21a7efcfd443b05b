"""The processes of a run: who this one is, and short notes that they leave for one another."""

import time
from collections.abc import Callable

import jax

# The service by which the processes met keeps notes, but JAX has no public way to it.
from jax._src import distributed

_POLL_SECONDS = 0.2


class Processes:
    """Who this process is among those of its run.

    Notes go through the service by which the processes met, which runs in the process that JAX calls the
    coordinator. They need no device, and a process that computes or hangs does not hold them up.

    Attributes:
        index: number of this process.
        count: how many there are.
        first: whether this is the one that writes what is written once: metrics, report, configuration.
    """

    def __init__(self):
        """To be made after the processes have met, see `birdie_jax.training.processes`."""
        self.index, self.count = jax.process_index(), jax.process_count()
        self.first = self.index == 0
        self._client = distributed.global_state.client

    def write(self, topic: str, text: str) -> None:
        """Leave a note for all on `topic`, in place of this process's earlier one."""
        self._client.key_value_set(f"birdie/{topic}/{self.index}", text, allow_overwrite=True)

    def read(self, topic: str) -> dict[int, str]:
        """Return the notes on `topic` by the number of the process that wrote them."""
        notes = self._client.key_value_dir_get(f"birdie/{topic}")
        return {int(key.rsplit("/", 1)[1]): text for key, text in notes}

    def after_first(self, topic: str, action: Callable[[], str]) -> str:
        """Let the first process act; return what it gave, on every process, once it has.

        Args:
            topic: of the note that the others wait for; to be used once.
            action: what the first process does; the others do not.
        """
        if self.count == 1:
            return action()
        if self.first:
            self.write(topic, action())
        while 0 not in (notes := self.read(topic)):
            time.sleep(_POLL_SECONDS)
        return notes[0]
