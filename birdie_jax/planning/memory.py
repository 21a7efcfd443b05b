"""Bytes that a train step needs on a device, by what they hold."""

import re
from typing import Any, NamedTuple

import jax
import numpy as np

from birdie_jax.engine.state import TrainState
from birdie_jax.planning.program_text import Computation, Program
from birdie_jax.planning.trip_counts import changed_values

_TRANSPARENT = ("copy", "bitcast", "opt-barrier", "optimization-barrier", "copy-done", "copy-start")
_SIZE = r"([\d.]+)([KMGT]?)"
_OUT_OF_MEMORY = (
    rf"Used {_SIZE} of {_SIZE} hbm",
    rf"required for HLO temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)",
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class StateBytes(NamedTuple):
    """Bytes of the train state on one device.

    Attributes:
        parameters: of the model.
        optimizer: of its state.
        rest: of the bandit, the step and everything else.
    """

    parameters: int
    optimizer: int
    rest: int


def state_bytes(state: TrainState) -> StateBytes:
    """Return the bytes of a state of arrays, or of their shapes with shardings, on one device."""

    def total(tree: Any) -> int:
        return sum(map(_bytes_of_shard, jax.tree.leaves(tree)))

    parameters, optimizer = total(state.params), total(state.optimizer)
    return StateBytes(parameters, optimizer, total(state) - parameters - optimizer)


def _bytes_of_shard(leaf: Any) -> int:
    return int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize


def activation_bytes(program: Program) -> int:
    """Return the bytes that loops make and later loops read: what is kept for the backward pass.

    Of the results of a `while` those count that it changes and that a later `while` of the same computation
    reads without changing them. What is kept without loops, as by a model of one layer, is not told apart
    from other temporaries.
    """
    kept = 0
    for computation in program.computations.values():
        loops = [one for one in computation if one.opcode == "while"]
        if len(loops) < 2:
            continue
        changed = {loop.name: changed_values(program, loop) for loop in loops}
        found = set()
        for loop in loops:
            (initial,) = loop.operands
            elements = computation.instructions[initial].operands
            for number, element in enumerate(elements):
                if number in changed[loop.name]:
                    continue
                origin = _element_of_loop(computation, element)
                if origin is not None and origin[1] in changed[origin[0]]:
                    found.add(origin)
        kept += sum(computation.instructions[name].types[number].bytes for name, number in found)
    return kept


def _element_of_loop(computation: Computation, name: str) -> tuple[str, int] | None:
    """Return the loop and the number of its result that a value is, if it is one."""
    value = computation.instructions[name]
    while value.opcode in _TRANSPARENT:
        value = computation.instructions[value.operands[0]]
    if value.opcode != "get-tuple-element":
        return None
    source = computation.instructions[value.operands[0]]
    return (source.name, int(value.attribute("index"))) if source.opcode == "while" else None


class OutOfMemory(NamedTuple):
    """What a TPU's compiler tells of a program that does not fit.

    Attributes:
        needed: bytes.
        available: bytes.
    """

    needed: float
    available: float


def out_of_memory(message: str) -> OutOfMemory | None:
    """Return what a compiler's error message tells of memory, if that is what it is about."""
    for pattern in _OUT_OF_MEMORY:
        found = re.search(pattern, message)
        if found is not None:
            needed, unit, available, of = found.groups()
            return OutOfMemory(float(needed) * _UNITS[unit], float(available) * _UNITS[of])
    return None
