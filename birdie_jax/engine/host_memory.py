"""The memory of programs that run on CPUs, kept by the process from one call to the next.

XLA asks the C library for the temporary memory of a program at every call, and returns it afterwards. glibc
gives blocks from 32 MiB back to the system, which clears every page anew when it is next touched: a train
step of 1M parameters spent more than a quarter of its time there (docs/measurements/cpu_training.md).
"""

import ctypes
import os

import jax

# The parameters of glibc's mallopt, from its malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
# Blocks below it are taken from the heap, which is kept.
_LARGEST_KEPT = 1 << 30
_NEVER_TRIM = (1 << 31) - 1
# A user who has set one of them has decided otherwise.
_VARIABLES = ("GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def keep_freed_memory(platform: str | None = None) -> bool:
    """Let glibc keep memory that XLA's CPU programs free; return whether it will.

    The process stays as large as it once was. To be called before anything is computed: a thread that
    has allocated memory keeps its own heap, of at most 64 MiB. Nothing is changed for other devices, with
    another C library, or where a variable of glibc's malloc (such as MALLOC_ARENA_MAX) is set.

    Args:
        platform: the platform of the devices; None: of JAX's default ones.
    """
    if (platform or jax.default_backend()) != "cpu" or any(name in os.environ for name in _VARIABLES):
        return False
    if not os.confstr_names.get("CS_GNU_LIBC_VERSION") or not os.confstr("CS_GNU_LIBC_VERSION"):
        return False
    library = ctypes.CDLL(None)
    # One heap for all threads: only the first grows beyond 64 MiB.
    wanted = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, _LARGEST_KEPT), (_TRIM_THRESHOLD, _NEVER_TRIM))
    return all([library.mallopt(name, value) == 1 for name, value in wanted])
