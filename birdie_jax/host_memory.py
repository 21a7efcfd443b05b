"""Keeps freed memory in the process between calls of programs on CPUs.

XLA allocates the temporary memory of a program at every call and frees it afterwards. glibc returns large
blocks to the system, which clears every page again on the next access. This took a third of the time of a
train step with 1M parameters (docs/measurements/cpu_training.md).
"""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

# The parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
# Use one heap for all threads, because only the first can grow beyond 64 MiB. It serves blocks of any size,
# grows in large steps, and never returns memory to the system.
_VALUES = {_ARENA_MAX: 1, _MMAP_MAX: 0, _TOP_PAD: 256 << 20, _TRIM_THRESHOLD: (1 << 31) - 1}
# If the user has set one of these, change nothing.
_VARIABLES = (
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
)
# Device files of NVIDIA and AMD GPUs and of TPUs.
_ACCELERATORS = ("nvidia[0-9]*", "kfd", "accel*", "vfio/[0-9]*")


def keep_freed_memory(environment: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> bool:
    """Make glibc keep freed memory if JAX will run on CPUs, and return whether it does.

    The process never shrinks. Call this before you import NumPy or JAX: each thread that has already
    allocated memory has its own heap, which returns memory to the system. The call changes nothing on
    machines with accelerators (unless JAX_PLATFORMS is cpu), with another C library, or if a variable of
    glibc's malloc (such as MALLOC_ARENA_MAX) is set.

    Args:
        environment: the environment variables of the process.
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
