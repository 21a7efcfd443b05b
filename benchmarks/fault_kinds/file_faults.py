"""Failing file operations: each operation, in each way."""

import random
from typing import NamedTuple

from benchmarks.fault_kinds.layer import Action, Class, Disturbance
from benchmarks.fault_kinds.play import Reference, Step

_NAMES = Class.OPEN | Class.CREATE | Class.RENAME | Class.REMOVE | Class.MAKE | Class.STAT | Class.LIST


class Way(NamedTuple):
    """A way in which an operation fails.

    Attributes:
        name: the description of the failure.
        classes: the operations that can fail in this way.
        action: the action of the layer.
        error: the name of the error.
        lasting: whether all later changes fail too.
    """

    name: str
    classes: int
    action: Action
    error: str
    lasting: bool = False


WAYS = (
    Way("no space, once", Class.CHANGES, Action.FAIL, "ENOSPC"),
    Way("no space from there on", Class.CHANGES, Action.FAIL, "ENOSPC", lasting=True),
    Way("half is written, then no space", Class.WRITE, Action.HALF, "ENOSPC"),
    Way("half is written, and no error", Class.WRITE, Action.SHORT, "EIO"),
    Way("EIO", Class.ALL, Action.FAIL, "EIO"),
    Way("EACCES", _NAMES, Action.FAIL, "EACCES"),
)


class FileFault(NamedTuple):
    """An operation that fails, and the way in which it fails.

    Attributes:
        way: the way.
        at: the number of the operation among those that can fail in this way.
        resumed: whether the start with the operation resumes a killed run.
    """

    way: Way
    at: int
    resumed: bool


# At least the number of operations of a run.
SLOTS = 2048
# A start that resumes a run killed midway has about this share of the operations of a whole run.
_RESUMED_SHARE = 0.65
CASES = len(WAYS) * 2 * SLOTS
"""The number of different cases."""


def choose_fault(number: int, seed: str, reference: Reference) -> FileFault:
    """Return the fault of a case; the cases visit all pairs of operation and way in random order."""
    order = list(range(CASES))
    random.Random(seed).shuffle(order)
    chosen, way = divmod(order[number % CASES], len(WAYS))
    slot, resumed = divmod(chosen, 2)
    count = reference.count(WAYS[way].classes) * (_RESUMED_SHARE if resumed else 1)
    return FileFault(WAYS[way], 1 + int(slot * count / SLOTS), bool(resumed))


def steps_of(fault: FileFault, reference: Reference) -> list[Step]:
    """Return the starts of a case: one with the fault, and for some cases a killed one before it."""
    way = fault.way
    failing = Step(Disturbance("", "", way.classes, fault.at, way.action, way.error, way.lasting))
    if not fault.resumed:
        return [failing]
    midway = reference.count(Class.CHANGES) // 2
    return [Step(Disturbance("", "", Class.CHANGES, midway, Action.KILL)), failing]
