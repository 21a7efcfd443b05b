"""Reads token shards: any record of a split by its number, from any thread or process."""

import bisect
import errno
import itertools
import operator
import os
from collections.abc import Callable
from typing import Any, SupportsIndex

from birdie_jax.errors import DataError
from birdie_jax.storage import is_remote, list_files
from birdie_jax.text.locations import Location, locate, reason
from birdie_jax.text.manifest import MANIFEST_NAME, TOKENIZER_NAME, Shard, load_manifest
from birdie_jax.text.remote_records import RemoteRecords, check_readable, read_record
from birdie_jax.text.shard_readers import OpenReaders
from birdie_jax.text.token_record import TokenRecord, decode_record
from birdie_jax.text.tokenizer import Tokenizer

DEFAULT_MIRROR_GIB = 64


class TokenShards:
    """The records of one split of a prepared folder, as a sequence.

    Files are opened on first use. You can pickle an instance, use it in a forked process, and read from
    several threads. If the folder is in a bucket, call `request` some time before you read a record.

    Attributes:
        directory: the prepared folder, on a disk or in a bucket.
        is_remote: whether it is in a bucket.
        not_mirrored: why the shards of a bucket are not copied to this machine; empty if they are.
        split: `train` or `validation`.
        manifest: the manifest of the folder.
        num_pieces: the number of pieces of the tokenizer that made the shards.
        vocab_size: the padded vocabulary size of that tokenizer.
        num_tokens: the number of tokens of the split.
        num_documents: the number of documents of the split.
        max_record_tokens: the number of tokens in the longest record of the split.
    """

    def __init__(
        self,
        directory: str | Location,
        split: str,
        *,
        tokenizer_sha256: str | None = None,
        mirror_gib: int = DEFAULT_MIRROR_GIB,
    ):
        """Check the folder without reading its records.

        Args:
            directory: the output folder of `prepare_data`.
            split: `train` or `validation`.
            tokenizer_sha256: `Tokenizer.sha256` of the tokenizer that the caller uses; None: not checked.
            mirror_gib: the maximum size in GiB of all copies of buckets' shards in this machine's cache
                folder; if the text does not fit, each record is read from the bucket.

        Raises:
            DataError: the manifest is missing, incomplete or of another version, the split is empty, the
                shards were made with another tokenizer, or a shard is missing or has another size than
                recorded; or the store requires local copies and they do not fit on this machine.
            ValueError: `split` is neither `train` nor `validation`.
        """
        self.directory = locate(directory)
        self.is_remote = is_remote(self.directory)
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
        check_sizes(self.directory, shards)
        self.not_mirrored = ""
        if self.is_remote:
            self.not_mirrored = check_readable(self.directory, self.manifest, mirror_gib)
        self.num_pieces = self.manifest.tokenizer.num_pieces
        self.vocab_size = self.manifest.tokenizer.vocab_size
        self.num_tokens = self.manifest.tokens(split)
        self.num_documents = self.manifest.documents(split)
        self.max_record_tokens = max(shard.max_record_tokens for shard in shards)
        self._shards = shards
        self._ends = list(itertools.accumulate(shard.records for shard in shards))
        self._open: OpenReaders | RemoteRecords | None = None

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: SupportsIndex) -> TokenRecord:
        """Return record `index` of the split, counted across all shards; -1 is the last.

        Raises:
            IndexError: there is no such record.
            DataError: the record cannot be read; names the file and the record within it.
        """
        shard, record = self._find(index)
        payload: bytes
        opened = self._opened()
        if isinstance(opened, RemoteRecords):
            payload = opened.read(shard, record)
        else:
            path = self.directory / self._shards[shard].name
            payload = read_record(opened, shard, path, self._shards[shard].records, record)
        return self._decode(payload, shard, record)

    def request(self, index: SupportsIndex) -> Callable[[], TokenRecord] | None:
        """Start to read record `index`, unless it is on a local disk.

        Returns:
            A function that waits for the record and returns it, or raises the error of the read; None if
            the record is on a local disk.

        Raises:
            IndexError: there is no such record.
        """
        opened = self._opened()
        if not isinstance(opened, RemoteRecords):
            return None
        shard, record = self._find(index)
        if opened.is_local(shard):
            return None
        wait = opened.request(shard, record)
        return lambda: self._decode(wait(), shard, record)

    def _opened(self) -> OpenReaders | RemoteRecords:
        opened = self._open
        # A forked process must not use its parent's readers, or a lock that was held at the fork.
        if opened is None or opened.process != os.getpid():
            if self.is_remote:
                mirrored = not self.not_mirrored
                opened = RemoteRecords(self.directory, self.manifest, self._shards, mirrored)
            else:
                opened = OpenReaders()
            self._open = opened
        return opened

    def _find(self, index: SupportsIndex) -> tuple[int, int]:
        """Return the number of the shard of record `index`, and the record's number within it."""
        number = operator.index(index)
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(
                f"record {operator.index(index)} of {len(self)} in {self.directory} {self.split}"
            )
        shard = bisect.bisect_right(self._ends, number)
        return shard, number - (self._ends[shard - 1] if shard else 0)

    def _decode(self, payload: bytes, shard: int, record: int) -> TokenRecord:
        try:
            return decode_record(payload, self.manifest.dtype)
        except (RuntimeError, ValueError, IndexError) as error:
            path = self.directory / self._shards[shard].name
            raise DataError(
                f"{path}: record {record} is corrupt: {error}; prepare the data again"
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_open"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open = None

    def __repr__(self) -> str:
        return f"TokenShards({str(self.directory)!r}, {self.split!r})"


def check_sizes(directory: Location, shards: tuple[Shard, ...]) -> None:
    """Check that shards exist and have the recorded sizes; in a bucket, with one listing.

    Raises:
        DataError: a shard is missing, cannot be read, or has another size; names the file and both sizes.
    """
    sizes: dict[str, int] = {}
    if is_remote(directory):
        try:
            sizes = list_files(directory)
        except OSError as error:
            raise DataError(f"{directory}: cannot be listed: {reason(error)}") from error
    for shard in shards:
        path = directory / shard.name
        try:
            if not is_remote(directory):
                found = os.stat(path).st_size
            elif shard.name in sizes:
                found = sizes[shard.name]
            else:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        except OSError as error:
            raise DataError(
                f"{path}: the shard cannot be read: {error.strerror}; prepare the data again"
            ) from error
        if found != shard.bytes:
            state = "truncated" if found < shard.bytes else "changed"
            raise DataError(
                f"{path}: is {state}: {found} bytes; the manifest says {shard.bytes}; "
                "prepare the data again"
            )


def load_tokenizer(directory: str | Location) -> Tokenizer:
    """Return the tokenizer that made a prepared folder's shards.

    Raises:
        DataError: the manifest or the model is missing or unreadable, or the manifest names another model;
            names both files and hashes.
    """
    directory = locate(directory)
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
