"""Writes one token shard, under a temporary name until it is complete, checked and on the disk."""

import contextlib
import hashlib
import re
import shutil
from pathlib import Path

from array_record.python.array_record_module import ArrayRecordWriter

from birdie_jax.errors import ShardWriteError
from birdie_jax.storage import PARTIAL_SUFFIX, is_full, publish
from birdie_jax.text.array_record_file import open_shard
from birdie_jax.text.manifest import SPLITS, Shard
from birdie_jax.text.saving import os_errors_as_data_errors

# One record per group, so a record can be read without its neighbours. Uncompressed token ids are read a
# third faster than compressed ones. One writing thread, so the record that hits a full disk reports it.
_OPTIONS = "group_size:1,uncompressed,max_parallelism:1"

SHARD_FILE = re.compile(
    rf"({'|'.join(SPLITS)})-(u\d{{5,}}-)?\d{{5,}}\.arrayrecord({re.escape(PARTIAL_SUFFIX)})?"
)
"""The names of shards, finished or partial."""


def shard_name(split: str, number: int, unit: int | None = None) -> str:
    """Return the file name of shard `number` of `split`; with `unit`, of a shard that this unit writes."""
    return f"{split}-{'' if unit is None else f'u{unit:05d}-'}{number:05d}.arrayrecord"


class ShardWriter:
    """Writes one shard.

    Attributes:
        tokens: the number of tokens added so far.
        documents: the number of documents added so far.
    """

    def __init__(self, path: Path):
        self.tokens = 0
        self.documents = 0
        self._path = path
        self._partial = path.with_name(path.name + PARTIAL_SUFFIX)
        self._records = 0
        self._bytes = 0
        self._sha256 = hashlib.sha256()
        self._max_record_tokens = 0
        try:
            self._writer = ArrayRecordWriter(str(self._partial), _OPTIONS)
        except RuntimeError as error:
            raise self._error(error) from error

    def add(self, payload: bytes, tokens: int, ends_document: bool) -> None:
        """Append a record of `tokens` tokens; `payload` comes from `token_record.encode_record`.

        Raises:
            ShardWriteError: the disk is full or a write fails; names the file and the free space.
        """
        try:
            self._writer.write(payload)
        except RuntimeError as error:
            raise self._error(error) from error
        self._records += 1
        self._bytes += len(payload)
        self._sha256.update(payload)
        self.tokens += tokens
        self.documents += ends_document
        self._max_record_tokens = max(self._max_record_tokens, tokens)

    def close(self) -> Shard:
        """Finish the file, check that it can be read, rename it to its final name, and return its entry.

        Raises:
            ShardWriteError: the disk is full or a write fails; no file has the final name.
        """
        try:
            self._writer.close()
        except RuntimeError as error:
            raise self._error(error) from error
        open_shard(self._partial, self._records).close()
        with os_errors_as_data_errors(f"{self._path}: cannot be written"):
            publish(self._partial, self._path)
        return Shard(
            name=self._path.name,
            records=self._records,
            tokens=self.tokens,
            documents=self.documents,
            bytes=self._path.stat().st_size,
            max_record_tokens=self._max_record_tokens,
            sha256=self._sha256.hexdigest(),
        )

    def discard(self) -> None:
        """Remove the partial file."""
        if self._writer.is_open():
            # `close` flushes, which fails again on a full disk; the file is removed anyway.
            with contextlib.suppress(RuntimeError):
                self._writer.close()
        self._partial.unlink(missing_ok=True)

    def _error(self, error: RuntimeError) -> ShardWriteError:
        free = shutil.disk_usage(self._path.parent).free
        return ShardWriteError(
            f"{self._partial}: cannot be written: {error} (the shard has {self._bytes} bytes so far, "
            f"its disk {free} bytes free); finished shards are kept: "
            f"{'make room and ' if is_full(error) else ''}run the same prepare_data again"
        )
