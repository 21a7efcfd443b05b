"""Writes files of a prepared folder; errors of the system or store become `DataError`s with the path."""

from collections.abc import Iterator
from contextlib import contextmanager

from birdie_jax.errors import DataError
from birdie_jax.storage import write_whole
from birdie_jax.text.locations import Location, reason


@contextmanager
def os_errors_as_data_errors(what: str, then: str = "") -> Iterator[None]:
    """Raise an OSError as a `DataError` whose message is `what`, the error's own text, and `then`.

    Raises:
        DataError: the `with` block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        raise DataError(f"{what}: {reason(error)}{then}") from error


def save_file(path: Location, contents: bytes) -> None:
    """Write a small file atomically.

    Raises:
        DataError: the file cannot be written, for instance on a full disk; the old contents remain.
    """
    what = f"{path}: {len(contents)} bytes cannot be written"
    with os_errors_as_data_errors(what, "; the previous file is kept"):
        write_whole(path, contents)
