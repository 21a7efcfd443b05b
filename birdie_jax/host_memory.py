"""The memory of programs that run on CPUs, kept by the process from one call to the next.

XLA asks the C library for the temporary memory of a program at every call, and returns it afterwards. glibc
gives large blocks back to the system, which clears every page anew when it is next touched: a third of the
time of a train step of 1M parameters (docs/measurements/cpu_training.md).
"""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

# The parameters of glibc's mallopt, from its malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
# One heap for all threads, as only the first one can be kept beyond 64 MiB; blocks of any size are taken
# from it; it grows by large steps, and is never given back.
_VALUES = {_ARENA_MAX: 1, _MMAP_MAX: 0, _TOP_PAD: 256 << 20, _TRIM_THRESHOLD: (1 << 31) - 1}
# A user who has set one of them has decided otherwise.
_VARIABLES = (
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
)
# What the drivers of NVIDIA's and AMD's GPUs and of TPUs make.
_ACCELERATORS = ("nvidia[0-9]*", "kfd", "accel*", "vfio/[0-9]*")


def keep_freed_memory(environment: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> bool:
    """Let glibc keep the memory that programs free, where JAX will run on CPUs; return whether it will.

    The process stays as large as it once was. To be called before numpy or JAX are imported: each thread
    that has asked for memory before has a heap of its own, which is given back. Nothing is changed on
    machines with accelerators unless JAX_PLATFORMS is cpu, with another C library, or where a variable of
    glibc's malloc (such as MALLOC_ARENA_MAX) is set.

    Args:
        environment: the variables of the process.
        devices: the folder of the system's devices.
    """
    platforms = environment.get("JAX_PLATFORMS", "")
    has_accelerator = any(True for pattern in _ACCELERATORS for _ in devices.glob(pattern))
    if (platforms or has_accelerator) and platforms != "cpu":
        return False
    if any(name in environment for name in _VARIABLES) or "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        return False
    library = ctypes.CDLL(None)
    return all([library.mallopt(name, value) == 1 for name, value in _VALUES.items()])
