"""File permissions of an ordinary user, even if the tests run as root."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NOBODY = 65534


@contextmanager
def make_unprivileged_folder() -> Iterator[Path]:
    """Yield a new folder, with the rights of its owner instead of root's."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # other users cannot open pytest's folders
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
