"""File operations that fail: each operation in turn, in each way."""

import random
from typing import NamedTuple

from benchmarks.fault_kinds.layer import Action, Class, Disturbance
from benchmarks.fault_kinds.play import Reference, Step

_NAMES = Class.OPEN | Class.CREATE | Class.RENAME | Class.REMOVE | Class.MAKE | Class.STAT | Class.LIST


class Way(NamedTuple):
    """How an operation fails.

    Attributes:
        name: the way in words.
        classes: the operations that can fail so.
        action: what the layer does.
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
    """An operation that fails in a way.

    Attributes:
        way: the way.
        at: the number of the operation among those that can fail so.
        resumed: whether the operation is one of a start that resumes a killed run.
    """

    way: Way
    at: int
    resumed: bool


def all_faults(reference: Reference, seed: str) -> list[FileFault]:
    """Return each operation with each way in which it can fail, in a random order."""
    faults = []
    for way in WAYS:
        count = reference.count(way.classes)
        faults += [FileFault(way, at, resumed=False) for at in range(1, count + 1)]
        faults += [FileFault(way, at, resumed=True) for at in range(1, count + 1)]
    random.Random(seed).shuffle(faults)
    return faults


def steps_of(fault: FileFault, reference: Reference) -> list[Step]:
    """Return the starts of a case: perhaps one that is killed midway, and one with the fault."""
    way = fault.way
    failing = Step(Disturbance("", "", way.classes, fault.at, way.action, way.error, way.lasting))
    if not fault.resumed:
        return [failing]
    midway = reference.count(Class.CHANGES) // 2
    return [Step(Disturbance("", "", Class.CHANGES, midway, Action.KILL)), failing]
