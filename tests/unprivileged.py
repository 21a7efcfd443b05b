"""Permissions that bind a user, even if the tests run as root."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NOBODY = 65534


@contextmanager
def make_unprivileged_folder() -> Iterator[Path]:
    """Give a new folder and the rights of its owner, who is not root: those are given up."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own are closed to other users
    user = os.geteuid()
    if user == 0:
        os.chown(folder, _NOBODY, _NOBODY)
        os.seteuid(_NOBODY)
    try:
        yield folder
    finally:
        if user == 0:
            os.seteuid(user)
        for path in (folder, *folder.rglob("*")):
            if path.is_dir():
                path.chmod(0o700)
        shutil.rmtree(folder)
