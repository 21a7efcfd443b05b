"""The processes of a run: who this one is, and short messages between them."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

# JAX's coordination service keeps keys and values, but has no public way to them.
from jax._src import distributed
from jax.experimental.multihost_utils import process_allgather

_POLL_SECONDS = 0.2


class Processes:
    """Who this process is among those of its run.

    Messages go through JAX's coordination service, which runs in process 0. They need no device, and a
    process that computes or hangs does not hold them up.

    Attributes:
        index: the number of this process.
        count: the number of processes.
        first: whether this process is the one that writes what is written once, such as metrics.
    """

    def __init__(self):
        """To be made after the processes have joined, see `birdie_jax.engine.processes`."""
        self.index, self.count = jax.process_index(), jax.process_count()
        self.first = self.index == 0
        # None where there is one process, which has nobody to write to.
        self._client: Any = distributed.global_state.client

    def write(self, topic: str, text: str) -> None:
        """Publish a message to all on `topic`, in place of this process's earlier one."""
        self._client.key_value_set(f"birdie/{topic}/{self.index}", text, allow_overwrite=True)

    def read(self, topic: str) -> dict[int, str]:
        """Return the messages on `topic` by the number of the process that wrote them."""
        messages = self._client.key_value_dir_get(f"birdie/{topic}")
        return {int(key.rsplit("/", 1)[1]): text for key, text in messages}

    def broadcast_from_first(self, topic: str, action: Callable[[], str]) -> str:
        """Let the first process act; return what it gave, on every process, once it has.

        Args:
            topic: the name of the message that the others wait for; to be used once.
            action: what the first process does and the others do not.
        """
        if self.count == 1:
            return action()
        if self.first:
            self.write(topic, action())
        while 0 not in (messages := self.read(topic)):
            time.sleep(_POLL_SECONDS)
        return messages[0]

    def gather(self, text: str) -> list[str]:
        """Return the texts of all processes, in their order; all call this at the same places.

        Through the devices, as texts may be larger than messages of the coordination service.
        """
        if self.count == 1:
            return [text]
        own = np.frombuffer(text.encode(), np.uint8)
        lengths = np.asarray(process_allgather(np.int32(len(own)))).reshape(-1)
        padded = np.zeros(int(lengths.max()), np.uint8)
        padded[: len(own)] = own
        gathered = np.asarray(process_allgather(padded))
        return [row[:length].tobytes().decode() for row, length in zip(gathered, lengths, strict=True)]
