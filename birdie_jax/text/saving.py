"""Files of a prepared folder: the operating system's errors become `DataError`s that name the file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from birdie_jax.storage import write_whole
from birdie_jax.text.errors import DataError


@contextmanager
def os_errors_as_data_errors(what: str, then: str = "") -> Iterator[None]:
    """Raise the operating system's errors as `DataError`: `what`, the system's own words, and `then`.

    Raises:
        DataError: the `with` block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        raise DataError(f"{what}: {error.strerror or error}{then}") from error


def save_file(path: Path, contents: bytes) -> None:
    """Write a small file, whole or not at all.

    Raises:
        DataError: the file cannot be written, for instance on a full disk; the old contents remain.
    """
    what = f"{path}: {len(contents)} bytes cannot be written"
    with os_errors_as_data_errors(what, "; what was there before is kept"):
        write_whole(path, contents)
