"""Opens ArrayRecord files, local or in Cloud Storage, for random access."""

import hashlib

from array_record.python.array_record_module import ArrayRecordReader

from birdie_jax.errors import DataError
from birdie_jax.text.locations import Location
from birdie_jax.text.manifest import Shard

_RANDOM_ACCESS = "readahead_buffer_size:0,max_parallelism:0"
_RECORDS_AT_ONCE = 256


def open_shard(path: Location, records: int) -> ArrayRecordReader:
    """Open a shard for random access and check that it has `records` records.

    Raises:
        DataError: the file is missing, corrupt or truncated, or has another number of records.
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


def check_records(path: Location, shard: Shard, *, name: Location | None = None) -> None:
    """Read a shard and check its records against the manifest.

    Args:
        path: the file.
        shard: its entry in the manifest.
        name: the name of the file in messages; None: the path.

    Raises:
        DataError: the file is corrupt, or its records differ from the manifest.
    """
    name = path if name is None else name
    try:
        reader = open_shard(path, shard.records)
        digest = hashlib.sha256()
        for start in range(0, shard.records, _RECORDS_AT_ONCE):
            for record in reader.read(start, min(start + _RECORDS_AT_ONCE, shard.records)):
                digest.update(record)
        reader.close()
    except (DataError, RuntimeError, ValueError, IndexError) as error:
        raise DataError(f"{name}: is corrupt: {error}; prepare the data again") from error
    if shard.sha256 and digest.hexdigest() != shard.sha256:
        raise DataError(f"{name}: its records differ from the manifest; prepare the data again")


def check_utf8(path: Location) -> None:
    """Check that the bytes of a path are UTF-8, as ArrayRecord requires.

    Raises:
        DataError: the path is not UTF-8.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{path}: is not UTF-8; allowed: a UTF-8 path") from error
