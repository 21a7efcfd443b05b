"""The processes of a run: the number of this process, and short messages between them."""

import json
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from birdie_jax.engine.private_api import coordination_client, coordinator_address
from birdie_jax.errors import ConfigError, shown
from birdie_jax.storage import is_remote
from birdie_jax.storage.workdir import Workdir, differences, flat

_POLL_SECONDS = 0.2
_CONNECT_SECONDS = 1.0


def coordinator_listens() -> bool:
    """Return whether process 0 accepts connections; also True if the network times out."""
    host, _, port = coordinator_address().rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except TimeoutError:
        return True
    except OSError:
        return False
    return True


class Processes:
    """The number of this process, and messages between the processes of its run.

    Messages go through JAX's coordination service, which runs in process 0. They need no device, and a
    process that computes or hangs does not delay them.

    Attributes:
        index: the number of this process.
        count: the number of processes.
        first: whether this process is process 0, which writes the shared files of the run, such as metrics.
    """

    def __init__(self):
        """Read this process's number; `birdie_jax.engine.processes` must have connected it before."""
        self.index, self.count = jax.process_index(), jax.process_count()
        self.first = self.index == 0
        # None if there is only one process.
        self._client = coordination_client()

    def write(self, topic: str, text: str) -> None:
        """Publish a message to all processes on `topic`; it replaces this process's earlier message."""
        self._client.key_value_set(f"birdie/{topic}/{self.index}", text, allow_overwrite=True)

    def read(self, topic: str) -> dict[int, str]:
        """Return the messages on `topic` by the number of the process that wrote them."""
        messages = self._client.key_value_dir_get(f"birdie/{topic}")
        return {int(key.rsplit("/", 1)[1]): text for key, text in messages}

    def first_listens(self) -> bool:
        """Return whether process 0 accepts connections; see `coordinator_listens`."""
        return coordinator_listens()

    def broadcast_from_first(self, topic: str, action: Callable[[], str]) -> str:
        """Call `action` in the first process, and return its result in every process.

        Args:
            topic: the name of the message that the others wait for; use it only once.
            action: the function that only the first process calls.
        """
        if self.count == 1:
            return action()
        if self.first:
            self.write(topic, action())
        while 0 not in (messages := self.read(topic)):
            time.sleep(_POLL_SECONDS)
        return messages[0]

    def gather(self, text: str) -> list[str]:
        """Return the texts of all processes in order; all processes must call this at the same point.

        The devices transfer the texts, because they may be larger than the messages of the coordination
        service.
        """
        if self.count == 1:
            return [text]
        own = np.frombuffer(text.encode(), np.uint8)
        lengths = np.asarray(process_allgather(np.int32(len(own)))).reshape(-1)
        padded = np.zeros(int(lengths.max()), np.uint8)
        padded[: len(own)] = own
        gathered = np.asarray(process_allgather(padded))
        return [row[:length].tobytes().decode() for row, length in zip(gathered, lengths, strict=True)]


# These fields may differ between hosts, which may have their own folders.
_HOST_FIELDS = frozenset({"data.cache_dir", "data.prepared"})
_ANSWER_POLL_SECONDS = 0.2


def check_agreement(config: Mapping[str, Any], processes: Processes) -> None:
    """Check that this process has the same configuration as the first one.

    Raises:
        ConfigError: the configurations differ; the message names every field that differs.
    """
    own = json.dumps(config)
    first = processes.broadcast_from_first("config", lambda: own)
    changed = [
        f"config.{name}: process 0 has {shown(theirs)}, process {processes.index} has {shown(ours)}"
        for name, theirs, ours in differences(flat(json.loads(first)), flat(json.loads(own)))
        if name not in _HOST_FIELDS
    ]
    if changed:
        raise ConfigError(f"the processes of a run need one configuration: {'; '.join(changed)}")


def check_shared(workdir: Workdir, processes: Processes, seconds: float) -> None:
    """Check that every process has the same folder `workdir` as the first one.

    Args:
        workdir: the folder of the run; the first process has made it.
        processes: the processes of the run.
        seconds: the time in which a file system must show one host the writes of another.

    Raises:
        ConfigError: this process has another folder of the same name, for example on hosts without a shared
            file system.
    """
    # A URL names the same place on every host.
    if processes.count == 1 or is_remote(workdir.root):
        return
    token = secrets.token_hex(8)
    own = workdir.sharing_probe(token)
    if processes.first:
        for left_behind in workdir.root.glob(workdir.sharing_probe("*").name):
            left_behind.unlink()
        own.write_text("the processes of a run check whether they all see this file\n")
    path = workdir.root / processes.broadcast_from_first("sharing probe", lambda: own.name)
    deadline = time.monotonic() + seconds
    # List the folder, because a file system may cache that a file is absent.
    while not workdir.root.is_dir() or path not in workdir.root.iterdir():
        if time.monotonic() > deadline:
            raise ConfigError(
                f"--workdir: process {processes.index} does not see {path}, which process 0 has written; "
                "allowed: a folder on a file system that all processes share"
            )
        time.sleep(_ANSWER_POLL_SECONDS)
    processes.write("seen", path.name)
    if processes.first:
        while len(processes.read("seen")) < processes.count:
            time.sleep(_ANSWER_POLL_SECONDS)
        own.unlink()
