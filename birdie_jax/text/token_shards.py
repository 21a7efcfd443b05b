"""Reading token shards: any record of a split by its number, from any thread or process."""

import bisect
import itertools
import operator
import os
import threading
from pathlib import Path
from typing import Any, SupportsIndex

from array_record.python.array_record_module import ArrayRecordReader

from birdie_jax.text.errors import DataError
from birdie_jax.text.manifest import MANIFEST_NAME, TOKENIZER_NAME, load_manifest
from birdie_jax.text.token_record import TokenRecord, decode_record
from birdie_jax.text.tokenizer import Tokenizer

_RANDOM_ACCESS = "readahead_buffer_size:0,max_parallelism:0"
# An open reader holds a file descriptor, of which a process has about a thousand.
_MAX_OPEN_FILES = 256


class TokenShards:
    """The records of one split of a prepared folder, as a sequence.

    Files are opened when first read. An instance may be pickled, inherited by a forked process, and read
    from several threads at once.

    Attributes:
        directory: the prepared folder.
        split: `train` or `validation`.
        manifest: what the folder holds.
        vocab_size: the padded vocabulary of the tokenizer that made the shards.
        num_tokens: the number of tokens of the split.
        num_documents: the number of documents of the split.
        max_record_tokens: the number of tokens in the longest record of the split.
    """

    def __init__(self, directory: str | Path, split: str, *, tokenizer_sha256: str | None = None):
        """Check the folder without reading its records.

        Args:
            directory: output of `prepare_data`.
            split: `train` or `validation`.
            tokenizer_sha256: `Tokenizer.sha256` of the tokenizer that the caller uses; None: not checked.

        Raises:
            DataError: the manifest is missing, incomplete or of another version, the split is empty, the
                shards were made with another tokenizer, or a shard is missing or not of the recorded size.
            ValueError: `split` is no split.
        """
        self.directory = Path(directory)
        self.split = split
        self.manifest = load_manifest(self.directory)
        shards = self.manifest.shards(split)
        path = self.directory / MANIFEST_NAME
        if not self.manifest.complete or self.manifest.tokenizer is None:
            raise DataError(
                f"{path}: the preparation was stopped before its end; run the same prepare_data again"
            )
        found = self.manifest.tokenizer.sha256
        if tokenizer_sha256 is not None and tokenizer_sha256 != found:
            raise DataError(
                f"{path}: the shards were made with the tokenizer of SHA-256 {found} "
                f"({self.directory / TOKENIZER_NAME}), but the tokenizer in use has {tokenizer_sha256}; "
                "use that tokenizer, or prepare the data again"
            )
        if not shards:
            raise DataError(f"{path}: the {split} split has no shards")
        for shard in shards:
            check_size(self.directory / shard.name, shard.bytes)
        self.vocab_size = self.manifest.tokenizer.vocab_size
        self.num_tokens = self.manifest.tokens(split)
        self.num_documents = self.manifest.documents(split)
        self.max_record_tokens = max(shard.max_record_tokens for shard in shards)
        self._shards = shards
        self._ends = list(itertools.accumulate(shard.records for shard in shards))
        self._open = _OpenReaders()

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: SupportsIndex) -> TokenRecord:
        """Return record `index`, counted through all shards of the split; -1 is the last.

        Raises:
            IndexError: there is no such record.
            DataError: the record cannot be read; names the file and the record within it.
        """
        number = operator.index(index)
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(
                f"record {operator.index(index)} of {len(self)} in {self.directory} {self.split}"
            )
        shard = bisect.bisect_right(self._ends, number)
        record = number - (self._ends[shard - 1] if shard else 0)
        path = self.directory / self._shards[shard].name
        readers = self._open
        if readers.process != os.getpid():
            # A forked process must not share its parent's readers, nor a lock held at the fork.
            readers = self._open = _OpenReaders()
        reader = readers.get(shard, path, self._shards[shard].records)
        try:
            return decode_record(reader.read([record])[0], self.manifest.dtype)
        except (RuntimeError, ValueError, IndexError) as error:
            raise DataError(
                f"{path}: record {record} is corrupt: {error}; prepare the data again"
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_open"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open = _OpenReaders()

    def __repr__(self) -> str:
        return f"TokenShards({str(self.directory)!r}, {self.split!r})"


class _OpenReaders:
    """The readers that one process has open, by the shard's number."""

    def __init__(self):
        self.process = os.getpid()
        self._readers: dict[int, ArrayRecordReader] = {}
        self._lock = threading.Lock()

    def get(self, shard: int, path: Path, records: int) -> ArrayRecordReader:
        """Return the reader of `shard`, opened now if need be and checked to hold `records` records."""
        reader = self._readers.get(shard)
        if reader is not None:
            return reader
        with self._lock:
            reader = self._readers.get(shard)
            if reader is None:
                reader = open_shard(path, records)
                while len(self._readers) >= _MAX_OPEN_FILES:
                    # Dropped, not closed: another thread may be reading; the last user's release closes it.
                    self._readers.pop(next(iter(self._readers)))
                self._readers[shard] = reader
        return reader


def open_shard(path: Path, records: int) -> ArrayRecordReader:
    """Open a shard for random access and check that it has `records` records.

    Raises:
        DataError: the file is missing, corrupt or cut short, or has another number of records.
    """
    check_utf8(path)
    try:
        reader = ArrayRecordReader(str(path), _RANDOM_ACCESS)
        found = reader.num_records()
    except (RuntimeError, ValueError) as error:
        raise DataError(
            f"{path}: is not a readable ArrayRecord file: {error}; prepare the data again"
        ) from error
    if found != records:
        raise DataError(
            f"{path}: has {found} readable records; the manifest says {records}; prepare the data again"
        )
    return reader


def check_utf8(path: Path) -> None:
    """Check that the bytes of a path are UTF-8: ArrayRecord takes no other.

    Raises:
        DataError: they are not.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{path}: is not UTF-8; shards can be written and read under such alone") from error


def check_size(path: Path, expected: int) -> None:
    """Check that a shard is there and has `expected` bytes.

    Raises:
        DataError: it is missing, cannot be read, or has another size; names the file and both sizes.
    """
    try:
        found = path.stat().st_size
    except OSError as error:
        raise DataError(
            f"{path}: the shard cannot be read: {error.strerror}; prepare the data again"
        ) from error
    if found != expected:
        state = "truncated" if found < expected else "changed"
        raise DataError(
            f"{path}: is {state}: {found} bytes; the manifest says {expected}; prepare the data again"
        )


def load_tokenizer(directory: str | Path) -> Tokenizer:
    """Return the tokenizer that made a prepared folder's shards.

    Raises:
        DataError: the manifest or the model is missing or unreadable, or the model is not the one that the
            manifest names; names both files and hashes.
    """
    directory = Path(directory)
    identity = load_manifest(directory).tokenizer
    if identity is None:
        raise DataError(
            f"{directory / MANIFEST_NAME}: the preparation was stopped before its tokenizer was made; "
            "run the same prepare_data command again"
        )
    tokenizer = Tokenizer(directory / TOKENIZER_NAME)
    if tokenizer.sha256 != identity.sha256:
        raise DataError(
            f"{tokenizer.name}: has SHA-256 {tokenizer.sha256}, but the shards were made with "
            f"{identity.sha256} ({directory / MANIFEST_NAME})"
        )
    return tokenizer
