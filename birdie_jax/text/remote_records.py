"""Records of token shards in a bucket, read ahead by threads.

Cloud Storage: records are read from the bucket one by one. If the text fits on the local disk
(`shard_mirror.py`), each shard is copied in the background on first use and then read from its copy.
Other stores: ArrayRecord cannot read them, so a shard is copied before its first record is read.
"""

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from absl import logging

from birdie_jax.errors import DataError
from birdie_jax.text.array_record_file import open_shard
from birdie_jax.text.locations import Location
from birdie_jax.text.manifest import Manifest, Shard
from birdie_jax.text.shard_mirror import ShardMirror, find_obstacle
from birdie_jax.text.shard_readers import OpenReaders

GIB = 1 << 30
READ_SECONDS = 120.0
"""The time limit for a record from Cloud Storage; ArrayRecord alone would retry for much longer."""

_READING_THREADS = 32
_COPYING_THREADS = 4

Result = TypeVar("Result")


def check_readable(directory: Location, manifest: Manifest, mirror_gib: int) -> str:
    """Decide whether to copy the shards of a text in a bucket to this machine.

    Returns:
        The reason why the shards are not copied; empty if they are.

    Raises:
        DataError: the store requires copies, and the shards cannot be copied; says what to do.
    """
    obstacle = find_obstacle(manifest, mirror_gib * GIB)
    if obstacle and not _is_read_in_place(directory):
        raise DataError(
            f"{directory}: records of such a store are read from copies on this machine: {obstacle}; "
            "raise data.mirror_gib, make room in the cache folder (XDG_CACHE_HOME), or put the text "
            "on a disk or gs://"
        )
    return obstacle


class RemoteRecords:
    """Reads the records of some shards in one process; threads may share an instance."""

    def __init__(self, directory: Location, manifest: Manifest, shards: tuple[Shard, ...], mirrored: bool):
        self.process = os.getpid()
        self._directory = directory
        self._shards = shards
        self._mirror = ShardMirror(directory, manifest) if mirrored else None
        self._in_place = OpenReaders() if _is_read_in_place(directory) else None
        self._copies = OpenReaders()
        self._readers = _DaemonThreads(_READING_THREADS)
        self._copiers = _DaemonThreads(_COPYING_THREADS)
        self._copying: dict[int, Future] = {}
        self._has_warned = False
        self._lock = threading.Lock()

    def is_local(self, shard: int) -> bool:
        """Return whether shard number `shard` is read from a copy on this machine's disk."""
        return self._mirror is not None and self._mirror.find(self._shards[shard]) is not None

    def request(self, shard: int, record: int) -> Callable[[], bytes]:
        """Start to read a record; return a function that waits for the record and returns it.

        The function raises DataError if the record cannot be read or does not arrive in time.
        """
        future = self._readers.submit(lambda: self._read(shard, record))

        def wait() -> bytes:
            try:
                return future.result(READ_SECONDS if self._in_place else None)
            except TimeoutError as error:
                raise DataError(
                    f"{self._directory / self._shards[shard].name}: record {record} did not arrive within "
                    f"{READ_SECONDS:.0f} s; the store is unreachable, or does not answer"
                ) from error

        return wait

    def read(self, shard: int, record: int) -> bytes:
        """Return a record of a shard.

        Raises:
            DataError: the record cannot be read or does not arrive in time.
        """
        if self.is_local(shard):
            return self._read(shard, record)
        return self.request(shard, record)()

    def _read(self, shard: int, record: int) -> bytes:
        entry = self._shards[shard]
        path = self._mirror and self._mirror.find(entry)
        if path is None and self._mirror is not None:
            copying = self._copy(shard)
            if self._in_place is None:
                path = copying.result()
        if path is not None:
            return read_record(self._copies, shard, path, entry.records, record)
        assert self._in_place is not None
        return read_record(self._in_place, shard, self._directory / entry.name, entry.records, record)

    def _copy(self, shard: int) -> Future:
        """Start to copy a shard, once; if the copy fails, reads from the bucket continue."""
        with self._lock:
            if shard not in self._copying:
                self._copying[shard] = self._copiers.submit(lambda: self._fetch(self._shards[shard]))
            return self._copying[shard]

    def _fetch(self, shard: Shard) -> Path:
        assert self._mirror is not None
        try:
            return self._mirror.fetch(shard)
        except DataError as error:
            # If the store requires copies, the caller that waits for the record raises the error.
            with self._lock:
                is_first, self._has_warned = not self._has_warned, True
            if self._in_place and is_first:
                logging.warning(
                    "%s; its records are read from the bucket, also those of other shards that cannot be "
                    "copied",
                    error,
                )
            raise


def read_record(readers: OpenReaders, shard: int, path: Location, records: int, record: int) -> bytes:
    """Return a record of shard number `shard`, which is at `path` and has `records` records.

    Raises:
        DataError: the record cannot be read; names the file and the record.
    """
    reader = readers.get(shard, lambda: open_shard(path, records))
    try:
        return reader.read([record])[0]
    except (RuntimeError, ValueError, IndexError) as error:
        raise DataError(f"{path}: record {record} is corrupt: {error}; prepare the data again") from error


def _is_read_in_place(directory: Location) -> bool:
    return os.fspath(directory).startswith("gs://")


class _DaemonThreads:
    """A pool of daemon threads: the process can exit while a thread still waits for a store."""

    def __init__(self, count: int):
        self._count = count
        self._threads = 0
        self._tasks: queue.SimpleQueue[tuple[Future, Callable[[], Any]]] = queue.SimpleQueue()

    def submit(self, task: Callable[[], Result]) -> "Future[Result]":
        """Return a future for the result or the exception of `task`."""
        future: Future[Result] = Future()
        self._tasks.put((future, task))
        if self._threads < self._count:
            self._threads += 1
            threading.Thread(target=_work, args=(self._tasks,), daemon=True).start()
        return future


def _work(tasks: "queue.SimpleQueue[tuple[Future, Callable[[], Any]]]") -> None:
    while True:
        future, task = tasks.get()
        try:
            future.set_result(task())
        except BaseException as error:  # raised again where the caller waits
            future.set_exception(error)
        del future, task
