"""Names of files and folders that a user gives: of this machine's file systems, or URLs of buckets."""

import os
import re
from pathlib import Path

from etils import epath

from birdie_jax.errors import ConfigError, DataError
from birdie_jax.storage import is_remote, make_path

Location = Path | epath.Path
"""A local path, or that of an object of a bucket, which is no `pathlib.Path`."""

# How the message of a StoreError begins; the text of this package says it in its own words.
_DOING = re.compile(r"cannot be [a-z ]+: ")


def locate(name: str | os.PathLike) -> Location:
    """Return the path of a file or folder that a user names.

    Raises:
        DataError: it is a URL that cannot be used, or the library for its scheme is not installed.
    """
    if not is_remote(name):
        return Path(name)
    try:
        return make_path(name)
    except ConfigError as error:
        raise DataError(str(error)) from error


def reason(error: OSError) -> str:
    """Return what the system or the store says, for a message that says itself what was tried."""
    return _DOING.sub("", error.strerror or str(error), count=1)
