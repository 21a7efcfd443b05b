"""A process that can write to only one folder, because its commands can receive any output name."""

import ctypes
import os
from pathlib import Path

# From <sched.h> and <sys/mount.h>.
_NEW_MOUNTS = 0x00020000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 32, 4096, 16384, 1 << 18


def protect_files(folder: Path) -> None:
    """Make the root file system read-only for this process, except for `folder`.

    This needs root. For other users, file permissions already protect the files of others.
    """
    if os.geteuid() != 0:
        return
    library = ctypes.CDLL(None, use_errno=True)
    _check(library.unshare(_NEW_MOUNTS))
    own = os.fsencode(folder)
    for source, target, flags in (
        (b"none", b"/", _RECURSIVE | _PRIVATE),
        (own, own, _BIND),
        (b"none", b"/", _BIND | _REMOUNT | _READ_ONLY),
    ):
        _check(library.mount(source, target, None, ctypes.c_ulong(flags), None))


def _check(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), f"no mounts of its own: {os.strerror(ctypes.get_errno())}")
