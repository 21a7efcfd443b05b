"""Opening ArrayRecord files, local ones and those of Cloud Storage, for random access."""

from array_record.python.array_record_module import ArrayRecordReader

from birdie_jax.errors import DataError
from birdie_jax.text.locations import Location

_RANDOM_ACCESS = "readahead_buffer_size:0,max_parallelism:0"


def open_shard(path: Location, records: int) -> ArrayRecordReader:
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


def check_utf8(path: Location) -> None:
    """Check that the bytes of a path are UTF-8: ArrayRecord takes no other.

    Raises:
        DataError: they are not.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{path}: is not UTF-8; shards can be written and read under such alone") from error
