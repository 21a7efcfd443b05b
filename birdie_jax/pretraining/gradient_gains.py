"""Measures how a step on each single arm changes the mean of all classes' validation losses."""

from collections.abc import Callable, Iterable
from functools import partial

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from birdie_jax.array_types import ArmVector
from birdie_jax.batch import Batch
from birdie_jax.config_sections import OptimizerConfig
from birdie_jax.engine.state import TrainState
from birdie_jax.models.parameters import ParameterPolicy
from birdie_jax.pretraining.language_model_step import ArmSums

Measure = Callable[[PyTree, Batch], ArmSums]
Batches = Callable[[str], Iterable[Batch]]
"""Returns the validation rows, in parts, for a named pass over them."""


class GradientGains:
    """Measures the gains for the policy of `bandit/policies/gradients.py`, on the validation rows.

    The objective is the mean over classes of the mean loss of their arms. The gain of an arm is the
    derivative of the arm's loss along the optimizer's direction for the objective: the objective's gradient
    divided by the root of AdamW's second moments. The derivative is a central difference, with a step of
    the peak learning rate in each direction. This needs memory for two more copies of the parameters.
    """

    def __init__(self, settings: OptimizerConfig, policies: PyTree[ParameterPolicy], measure: Measure):
        """Set up the functions; they are compiled on first use.

        Args:
            settings: the settings of the run's optimizer.
            policies: the policy of every parameter.
            measure: (parameters, batch) -> the sums of each arm.
        """
        self._settings = settings
        self._gradient = partial(_objective_gradient, measure)
        self._direction = jax.jit(partial(_direction, settings, policies), donate_argnums=2)
        self._losses = jax.jit(partial(_losses_after, measure))

    def __call__(
        self, state: TrainState, batches: Batches, tokens: ArmVector, class_scale: ArmVector
    ) -> ArmVector:
        """Return the gain of each arm, in nats per unit of the optimizer's direction.

        Args:
            state: the train state.
            batches: the validation rows; this makes three passes over them.
            tokens: the number of target tokens of each arm in all rows.
            class_scale: 1 / (number of arms in the arm's class).
        """
        if not isinstance(self._gradient, jax.stages.Wrapped):
            # Each gradient has the sharding of its parameter.
            shardings = jax.tree.map(lambda leaf: leaf.sharding, state.params)
            self._gradient = jax.jit(self._gradient, out_shardings=shardings)
        weights = class_scale / (jnp.sum(class_scale) * tokens)
        slope = _total(self._gradient(state.params, weights, batch) for batch in batches("gradient"))
        direction = self._direction(state.optimizer, state.step, slope)
        size = self._settings.learning_rate
        up, down = (
            _total(self._losses(state.params, direction, step, batch) for batch in batches(name))
            for step, name in ((size, "a step up"), (-size, "a step down"))
        )
        return (up - down) / (2.0 * size * tokens)


def _objective_gradient(measure: Measure, params: PyTree, weights: ArmVector, batch: Batch) -> PyTree:
    return jax.grad(lambda at: jnp.sum(weights * measure(at, batch).loss))(params)


def _direction(
    settings: OptimizerConfig,
    policies: PyTree[ParameterPolicy],
    optimizer: PyTree,
    step: jax.Array,
    slope: PyTree,
) -> PyTree:
    moments = optax.tree_utils.tree_get(optimizer, "nu")
    unbiased = 1.0 - settings.beta2 ** jnp.maximum(step, 1).astype(jnp.float32)

    def of_parameter(policy: ParameterPolicy, slope: jax.Array, moment: jax.Array) -> jax.Array:
        # Before the first step there are no moments: the direction is the sign of the gradient.
        square = jnp.where(step > 0, moment / unbiased, jnp.square(slope))
        return policy.learning_rate_factor * slope / (jnp.sqrt(square) + settings.epsilon)

    return jax.tree.map(of_parameter, policies, slope, moments)


def _losses_after(
    measure: Measure, params: PyTree, direction: PyTree, size: jax.Array, batch: Batch
) -> ArmVector:
    """Return the summed loss of each arm after moving the parameters by `size` along a direction."""
    return measure(jax.tree.map(lambda at, way: at + size * way, params, direction), batch).loss


def _total(parts: Iterable[PyTree]) -> PyTree:
    parts = iter(parts)
    total = next(parts)
    for part in parts:
        total = jax.tree.map(jnp.add, total, part)
    return total
