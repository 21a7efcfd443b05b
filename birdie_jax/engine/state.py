"""What a run carries from step to step, and what a step tells."""

import typing
from collections.abc import Mapping
from typing import NamedTuple

import flax.struct
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from birdie_jax.array_types import Scalar


# Neither is checked at runtime: JAX builds the same classes with shapes and shardings as leaves.
@typing.no_type_check
class TrainState(flax.struct.PyTreeNode):
    """Everything on the devices that a run carries from step to step, and that a checkpoint holds.

    Attributes:
        step: int32, the number of train steps done.
        params: the model's parameters, float32.
        optimizer: the optimizer's state.
        sections: for each hook that keeps arrays, by its name, those arrays; and what is known of the last
            steps (`bad_steps`).
    """

    step: Int[Array, ""]
    params: PyTree
    optimizer: PyTree
    sections: Mapping[str, PyTree]

    def with_section(self, name: str, section: PyTree) -> "TrainState":
        """Return the state with other arrays in the section `name`."""
        return self.replace(sections={**self.sections, name: section})


@typing.no_type_check
class StepMetrics(flax.struct.PyTreeNode):
    """What a train step tells, all on the device until it is read.

    Attributes:
        loss: the mean loss of the batch.
        weight: what the mean is over: the number of target tokens, or of examples.
        grad_norm: the global norm of the gradient before clipping.
        tokens: how much of the batch the throughput counts: tokens, or examples.
        sums: named sums over the batch, which add up over steps.
        skipped: whether the step changed nothing (`bad_steps`).
        num_skipped: the number of such steps of the run so far, this one included.
        bad_in_a_row: the number of bad steps since the last one that changed the parameters.
        ends_run: whether these are too many.
    """

    loss: Scalar
    weight: Scalar
    grad_norm: Scalar
    tokens: Scalar
    sums: Mapping[str, Array]
    skipped: Bool[Array, ""] | bool = False
    num_skipped: Int[Array, ""] | int = 0
    bad_in_a_row: Int[Array, ""] | int = 0
    ends_run: Bool[Array, ""] | bool = False


class StepTotals(NamedTuple):
    """What some steps came to, on the host.

    Attributes:
        step: the last of the steps.
        num_steps: the number of steps.
        weight: the sum of `StepMetrics.weight` of the steps that were not skipped.
        tokens: the sum of `StepMetrics.tokens` of all.
        sums: the sums of `StepMetrics.sums` of the steps that were not skipped, in float64.
    """

    step: int
    num_steps: int
    weight: float
    tokens: float
    sums: Mapping[str, np.ndarray]
