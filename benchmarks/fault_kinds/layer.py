"""A layer under a process that disturbs its file operations and wall clock; see `layer.c`."""

import ctypes
import enum
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_SOURCE = Path(__file__).with_name("layer.c")
_VARIABLE = "BIRDIE_FAULT_LAYER"


class Class(enum.IntFlag):
    """What an operation does."""

    OPEN = 1
    CREATE = 2
    READ = 4
    WRITE = 8
    SYNC = 16
    RENAME = 32
    REMOVE = 64
    MAKE = 128
    STAT = 256
    LIST = 512
    CHANGES = CREATE | WRITE | SYNC | RENAME | REMOVE | MAKE
    READS = OPEN | READ | STAT | LIST
    ALL = CHANGES | READS


class Action(enum.IntEnum):
    """The action of the layer at the operation."""

    COUNT = 0
    FAIL = 1
    KILL = 2
    TERMINATE = 3
    HALF = 4
    SHORT = 5
    TORN = 6


class Disturbance(NamedTuple):
    """One disturbed operation, and the action there.

    Attributes:
        folder: only operations below this folder count.
        part: a text that the rest of their paths contains.
        classes: the classes of operations that count.
        at: the number of the disturbed operation, from 1; 0 disturbs none and logs all.
        action: FAIL fails with `error`; KILL sends SIGKILL before the operation, TORN amid a write;
            TERMINATE sends SIGTERM; SHORT writes half; HALF writes half, and later changes fail with
            `error`.
        error: the name of the error.
        lasting: whether all later changes fail too.
    """

    folder: str
    part: str = ""
    classes: int = Class.ALL
    at: int = 0
    action: Action = Action.COUNT
    error: str = "EIO"
    lasting: bool = False


def start_under_layer(environment: dict[str, str], folder: Path) -> None:
    """Compile the layer and restart this program on top of it; return if the layer is already active.

    Args:
        environment: variables to set for the program.
        folder: the folder for the compiled layer.
    """
    if _VARIABLE in os.environ:
        # Programs that this program starts, such as servers, do not need the layer.
        del os.environ["LD_PRELOAD"]
        return
    library = folder / "layer.so"
    compiled = folder / f"layer.{os.getpid()}.so"
    compiler = ["cc", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra"]
    subprocess.run([*compiler, "-o", str(compiled), str(_SOURCE), "-ldl"], check=True)
    # Replace the file in one step: another campaign may be using it.
    compiled.replace(library)
    changed = os.environ | environment | {"LD_PRELOAD": str(library), _VARIABLE: str(library)}
    sys.stdout.flush()
    os.execve(sys.executable, sys.orig_argv, changed)


def _layer() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ[_VARIABLE])


def arm(disturbance: Disturbance, log: int = -1) -> None:
    """Count the operations of this process from now on, and disturb one.

    Args:
        disturbance: the operation and the action.
        log: the file descriptor for the line that the layer writes about it.
    """
    number = getattr(errno, disturbance.error)
    _layer().layer_arm(
        disturbance.folder.encode(),
        disturbance.part.encode(),
        ctypes.c_uint(disturbance.classes),
        ctypes.c_long(disturbance.at),
        int(disturbance.action),
        number,
        int(disturbance.lasting),
        log,
    )


def jump(seconds: float) -> None:
    """Shift the wall clock that Python reads in this process."""
    _layer().layer_jump(ctypes.c_longlong(int(seconds * 1e9)))
