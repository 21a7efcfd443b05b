"""The train state of a run, and the metrics of a step."""

import typing
from collections.abc import Mapping
from typing import NamedTuple

import flax.struct
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from birdie_jax.array_types import Scalar


# No runtime checks of types, because JAX also builds these classes with shapes and shardings as leaves.
@typing.no_type_check
class TrainState(flax.struct.PyTreeNode):
    """The arrays on the devices that a run passes from step to step, and that a checkpoint saves.

    Attributes:
        step: int32, the number of train steps done.
        params: the model's parameters, float32.
        optimizer: the optimizer's state.
        sections: the arrays of each hook that keeps arrays, by its name; and the statistics of the last
            steps (`bad_steps`).
    """

    step: Int[Array, ""]
    params: PyTree
    optimizer: PyTree
    sections: Mapping[str, PyTree]

    def with_section(self, name: str, section: PyTree) -> "TrainState":
        """Return the state with the section `name` replaced."""
        return self.replace(sections={**self.sections, name: section})


@typing.no_type_check
class StepMetrics(flax.struct.PyTreeNode):
    """The metrics of a train step, on the device until they are read.

    Attributes:
        loss: the mean loss of the batch.
        weight: the weight of the mean: the number of target tokens, or of examples.
        grad_norm: the global norm of the gradient before clipping.
        tokens: the size of the batch for the throughput: tokens, or examples.
        sums: named sums over the batch, which add up over steps.
        skipped: whether the step changed nothing (`bad_steps`).
        num_skipped: the number of skipped steps of the run so far, including this one.
        bad_in_a_row: the number of bad steps since the last step that changed the parameters.
        ends_run: whether this number is too large, and the run ends.
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
    """The totals of some steps, on the host.

    Attributes:
        step: the last of the steps.
        num_steps: the number of steps, with the skipped ones.
        taken: the number of steps that were not skipped.
        weight: the sum of `StepMetrics.weight` of the steps that were not skipped.
        tokens: the sum of `StepMetrics.tokens` of all steps.
        sums: the sums of `StepMetrics.sums` of the steps that were not skipped, in float64.
    """

    step: int
    num_steps: int
    taken: int
    weight: float
    tokens: float
    sums: Mapping[str, np.ndarray]
