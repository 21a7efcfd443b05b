"""The bytes of the train state on one device."""

from math import prod
from typing import Any, NamedTuple

import jax

from birdie_jax.engine.state import TrainState


class StateBytes(NamedTuple):
    """The bytes of the train state on one device.

    Attributes:
        parameters: the bytes of the model's parameters.
        optimizer: the bytes of the optimizer's state.
        other: the bytes of everything else: the bandit's state, the step.
    """

    parameters: int
    optimizer: int
    other: int


def state_bytes(state: TrainState) -> StateBytes:
    """Return the bytes on one device of a state of arrays, or of their shapes with shardings."""
    parameters, optimizer = _shard_bytes(state.params), _shard_bytes(state.optimizer)
    return StateBytes(parameters, optimizer, _shard_bytes(state) - parameters - optimizer)


def _shard_bytes(tree: Any) -> int:
    """Return the bytes of a pytree's arrays, or of their shapes with shardings, on one device."""
    return sum(
        prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)
    )
