"""Check that a file is regular before reading it: a pipe blocks its reader, a device may never end."""

import os
import stat
from pathlib import Path

from birdie_jax.errors import DataError

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe (FIFO)"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def check_regular(path: Path, status: os.stat_result) -> None:
    """Check that `status` describes a regular file.

    Raises:
        DataError: the file is not regular; names its kind.
    """
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for test, name in _KINDS if test(status.st_mode)), "no regular file")
        raise DataError(f"{path}: is {kind}; allowed: a regular file")


def read_regular(path: Path) -> bytes:
    """Return the contents of a regular file.

    Raises:
        DataError: the file is not regular.
        OSError: the file cannot be read.
    """
    check_regular(path, path.stat())
    return path.read_bytes()
