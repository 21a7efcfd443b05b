"""The error message of a compiler that refuses a program for want of memory."""

import re
from typing import NamedTuple

_SIZE = r"([\d.]+)([KMGT]?)"
_MESSAGES = (
    rf"Used {_SIZE} of {_SIZE} hbm",
    rf"required for HLO temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)",
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class OutOfMemory(NamedTuple):
    """The memory that a refused program needs, as the TPU compiler states it.

    Attributes:
        needed: the bytes that the program needs on one device.
        available: the bytes that the device has.
    """

    needed: float
    available: float


def parse_out_of_memory(message: str) -> OutOfMemory | None:
    """Return the figures in a compiler's error message; None if the message is not about memory."""
    for pattern in _MESSAGES:
        found = re.search(pattern, message)
        if found is not None:
            needed, needed_unit, available, available_unit = found.groups()
            return OutOfMemory(
                float(needed) * _UNITS[needed_unit], float(available) * _UNITS[available_unit]
            )
    return None
