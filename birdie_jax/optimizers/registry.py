"""The type of an optimizer, the registry of optimizers, and their common parts."""

from collections.abc import Callable

import jax
import optax
from jaxtyping import PyTree

from birdie_jax.config_sections import OptimizerConfig
from birdie_jax.models.parameters import ParameterPolicy
from birdie_jax.optimizers.schedule import learning_rate_schedule
from birdie_jax.registry import Registry

Direction = Callable[[OptimizerConfig, PyTree[ParameterPolicy]], optax.GradientTransformation]
"""Maps settings and the policies of parameters to a transformation of gradients to descent directions."""

OPTIMIZERS: Registry[Direction] = Registry("optimizer.name")

register_optimizer = OPTIMIZERS.register


def make_optimizer(
    config: OptimizerConfig, num_steps: int, policies: PyTree[ParameterPolicy]
) -> optax.GradientTransformation:
    """Return the optimizer of a run, which maps gradients to changes of the parameters.

    It clips the gradients by their global norm if `config.clip_norm` is set, and applies the direction of
    `config.name`. It then applies weight decay and the learning rate, following each parameter's policy.

    Args:
        config: the section of the configuration.
        num_steps: the number of train steps of the run.
        policies: the policy of every parameter (`birdie_jax.models.parameters`).

    Raises:
        ConfigError: the optimizer is unknown.
    """
    optimizer = optax.chain(
        # Neither has state, so checkpoints with and without clipping are the same.
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        optax.chain(
            OPTIMIZERS.find(config.name)(config, policies),
            optax.add_decayed_weights(
                config.weight_decay, jax.tree.map(lambda policy: policy.weight_decay, policies)
            ),
            optax.scale_by_learning_rate(learning_rate_schedule(config, num_steps)),
        ),
    )

    def scaled(policy: ParameterPolicy, change: jax.Array) -> jax.Array:
        factor = policy.learning_rate_factor
        return change if factor == 1.0 else factor * change

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        updates, state = optimizer.update(updates, state, params)
        return jax.tree.map(scaled, policies, updates), state

    return optax.GradientTransformation(optimizer.init, update)
