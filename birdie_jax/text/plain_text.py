"""Reads a file as one text."""

from pathlib import Path

from birdie_jax.errors import DataError
from birdie_jax.storage import is_remote, read_bytes
from birdie_jax.text.locations import Location, reason
from birdie_jax.text.regular_files import read_regular


def read_text(path: Location) -> str:
    """Return the text of a UTF-8 file, unchanged (line ends are not translated).

    Raises:
        DataError: the file cannot be read, or is not UTF-8; names the first invalid byte.
    """
    try:
        contents = read_bytes(path) if is_remote(path) else read_regular(Path(path))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}") from error
    try:
        return contents.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: byte {error.start}: found {contents[error.start : error.end]!r}; allowed: UTF-8 text"
        ) from error
