"""The names of files and folders that a user gives: local paths, or URLs of buckets."""

import os
import re
from pathlib import Path

from etils import epath

from birdie_jax.errors import ConfigError, DataError
from birdie_jax.storage import is_remote, make_path

Location = Path | epath.Path
"""A local path, or the path of an object in a bucket, which is not a `pathlib.Path`."""

# The start of a StoreError's message; this package's messages replace it.
_DOING = re.compile(r"cannot be [a-z ]+: ")


def locate(name: str | os.PathLike) -> Location:
    """Return the path of a file or folder that a user names.

    Raises:
        DataError: the URL is not supported, or the library for its scheme is not installed.
    """
    if not is_remote(name):
        return Path(name)
    try:
        return make_path(name)
    except ConfigError as error:
        raise DataError(str(error)) from error


def reason(error: OSError) -> str:
    """Return the error text of the system or the store, without the operation, for use in a message."""
    return _DOING.sub("", error.strerror or str(error), count=1)
