"""A hook that averages the parameters over training, as an exponential moving average."""

import typing
from functools import partial

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from birdie_jax.array_types import Key
from birdie_jax.engine.protocols import HookCall, HookResult
from birdie_jax.engine.state import TrainState

NAME = "parameter_average"
PARAMETERS = f"{NAME}/parameters"
"""The path of the average in a checkpoint."""


@typing.no_type_check
class Average(flax.struct.PyTreeNode):
    """An average of parameters.

    Attributes:
        parameters: the average, float32; zeros before the first parameters.
        count: int32, the number of added parameters.
    """

    parameters: PyTree
    count: Int[Array, ""]


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
        self._add = jax.jit(partial(add, decay), donate_argnums=0)

    def create_section(self, key: Key) -> Average:
        """Return an empty average."""
        del key
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), self._shapes)
        return Average(zeros, jnp.zeros((), jnp.int32))

    def resume(self, state: TrainState) -> None:
        """Do nothing: the average is in the state."""

    def is_due(self, step: int, num_steps: int) -> bool:
        """Return whether to add the parameters of `step`: every few steps, and at the last one."""
        return step > 0 and (step % self._every_steps == 0 or step == num_steps)

    def run(self, state: TrainState, call: HookCall) -> HookResult:
        """Add the parameters to the average."""
        del call
        average = self._add(state.sections[self.name], state.params)
        return HookResult(state.with_section(self.name, average), {})

    def close(self) -> None:
        """Do nothing."""


def add(decay: float, average: Average, params: PyTree[jax.Array]) -> Average:
    """Return the average with `params` added."""
    count = average.count + 1
    share = (1.0 - decay) / (1.0 - decay ** count.astype(jnp.float32))
    moved = jax.tree.map(lambda old, new: old + share * (new - old), average.parameters, params)
    return Average(moved, count)
