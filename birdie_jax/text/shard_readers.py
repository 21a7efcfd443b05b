"""The open ArrayRecord readers of a process."""

import os
import threading
from collections.abc import Callable

from array_record.python.array_record_module import ArrayRecordReader

# An open reader uses a file descriptor; a process has about a thousand.
MAX_OPEN_FILES = 256


class OpenReaders:
    """The open readers of one process, by shard number.

    Attributes:
        process: the id of the process.
    """

    def __init__(self):
        self.process = os.getpid()
        self._readers: dict[int, ArrayRecordReader] = {}
        self._opening: dict[int, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, shard: int, open_reader: Callable[[], ArrayRecordReader]) -> ArrayRecordReader:
        """Return the reader of `shard`, opening it if needed; threads can open other shards meanwhile."""
        reader = self._readers.get(shard)
        if reader is not None:
            return reader
        with self._lock:
            opening = self._opening.setdefault(shard, threading.Lock())
        with opening:
            reader = self._readers.get(shard)
            if reader is None:
                reader = open_reader()
                with self._lock:
                    while len(self._readers) >= MAX_OPEN_FILES:
                        # Dropped, not closed: another thread may be reading. The last reference closes it.
                        self._readers.pop(next(iter(self._readers)))
                    self._readers[shard] = reader
        return reader
