"""A hook that averages the parameters over training, as an exponential moving average."""

import math
import typing
from functools import partial

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from birdie_jax.array_types import Key
from birdie_jax.engine.protocols import HookCall, HookResult
from birdie_jax.engine.state import TrainState

NAME = "parameter_average"
PARAMETERS = f"{NAME}/parameters"
"""The path of the average in a checkpoint."""
COUNT = f"{NAME}/count"
"""The path of the number of averaged parameters in a checkpoint."""


@typing.no_type_check
class Average(flax.struct.PyTreeNode):
    """An average of parameters.

    Attributes:
        parameters: the average, float32; zeros before the first parameters.
        count: int32, the number of added parameters.
        step: int32, the train step of the last addition; -1 before the first.
    """

    parameters: PyTree
    count: Int[Array, ""]
    step: Int[Array, ""]


class ParameterAverage:
    """Averages the parameters every few steps; the weight of earlier parameters decays exponentially.

    With w the decay, the average of p_1 ... p_n is (1 - w) (p_n + w p_(n-1) + ...) / (1 - w^n). Its weights
    add up to 1 for any n. It takes as much memory as the parameters, and is divided over devices like them.

    Attributes:
        name: the name of the hook.
    """

    name = NAME

    def __init__(self, parameters: PyTree[jax.ShapeDtypeStruct], decay: float, every_steps: int):
        """Prepare an average of parameters.

        Args:
            parameters: the shapes of the parameters.
            decay: w, the decay from one addition to the next.
            every_steps: the number of steps between two additions.
        """
        self._shapes = parameters
        self._every_steps = every_steps
        # The average must not be donated: if the run ends here, the loop saves the state from before.
        self._add = jax.jit(partial(add, decay))

    def create_section(self, key: Key) -> Average:
        """Return an empty average."""
        del key
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), self._shapes)
        return Average(zeros, jnp.int32(0), jnp.int32(-1))

    def resume(self, state: TrainState) -> None:
        """Do nothing: the average is in the state."""

    def is_due(self, step: int, num_steps: int) -> bool:
        """Return whether to add the parameters of `step`: every few steps, and at the last one."""
        return step > 0 and (step % self._every_steps == 0 or step == num_steps)

    def run(self, state: TrainState, call: HookCall) -> HookResult:
        """Add the parameters to the average, once a step."""
        average = self._add(state.sections[self.name], state.params, np.int32(call.step))
        return HookResult(state.with_section(self.name, average), {})

    def close(self) -> None:
        """Do nothing."""


def add(decay: float, average: Average, params: PyTree[jax.Array], step: Int[Array, ""]) -> Average:
    """Return the average with `params` of a train step added, unless they are its last addition.

    A run that is made longer calls its hooks again at its former last step.
    """
    count = average.count + 1
    # For a decay near 1, float32 has few digits of 1 - decay ** count.
    rate = math.log(decay) if decay else -math.inf
    share = (1.0 - decay) / -jnp.expm1(rate * count.astype(jnp.float32))
    moved = jax.tree.map(lambda old, new: old + share * (new - old), average.parameters, params)
    is_new = average.step != step
    return jax.tree.map(partial(jnp.where, is_new), Average(moved, count, step), average)
