"""How the critic learns: AdamW on the whole history, with noise on what it reads."""

from typing import cast

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from birdie_jax.array_types import Key
from birdie_jax.bandit.critic import Critic, decayed_parameters
from birdie_jax.bandit_config import BanditConfig


def critic_optimizer(config: BanditConfig, critic: Critic) -> optax.GradientTransformation:
    """Return AdamW at a constant rate, after clipping the global gradient norm."""
    return optax.chain(
        optax.clip_by_global_norm(config.critic_clip),
        optax.adamw(
            config.critic_learning_rate,
            weight_decay=config.critic_weight_decay,
            mask=decayed_parameters(critic),
        ),
    )


def critic_loss(
    critic: Critic,
    parameters: PyTree,
    steps: Float[Array, "length inputs"],
    targets: Float[Array, "length arms"],
    used: Int[Array, ""],
) -> Float[Array, ""]:
    """Return the squared error of the predicted rewards: summed over arms, mean over the `used` steps."""
    predictions = cast(Array, critic.apply({"params": parameters}, steps, used))
    is_used = jnp.arange(steps.shape[0]) < used
    # Selected before it is squared, so that nothing in the unused part reaches the gradient.
    error = jnp.where(is_used[:, None], predictions - targets, 0.0)
    return jnp.sum(jnp.square(error)) / jnp.maximum(used, 1)


def learn(
    config: BanditConfig,
    critic: Critic,
    parameters: PyTree,
    optimizer_state: PyTree,
    *,
    steps: Float[Array, "length inputs"],
    targets: Float[Array, "length arms"],
    used: Int[Array, ""],
    key: Key,
) -> tuple[PyTree, PyTree]:
    """Take `config.critic_updates` optimizer steps on the first `used` steps of a history.

    Each update multiplies every input by its own uniform factor from 1 - critic_noise to 1 + critic_noise:
    the history is short, and the critic would otherwise learn it by heart. With no step used nothing
    changes, not even by weight decay.

    Args:
        config: the number of updates, the noise, and the optimizer's settings.
        critic: the module that `make_critic` returns.
        parameters: the critic's parameters.
        optimizer_state: the state of `critic_optimizer(config, critic)`.
        steps: the critic's inputs (`critic_inputs`).
        targets: the class-scaled reward of each arm for each step's action.
        used: the number of steps whose reward is known.
        key: the random key of the noise.

    Returns:
        Parameters and optimizer state after the updates.
    """
    optimizer = critic_optimizer(config, critic)

    def update(carry: tuple[PyTree, PyTree], index: Int[Array, ""]) -> tuple[tuple[PyTree, PyTree], None]:
        parameters, optimizer_state = carry
        noise = jax.random.uniform(jax.random.fold_in(key, index), steps.shape, minval=-1.0, maxval=1.0)
        noisy = steps * (1.0 + config.critic_noise * noise)
        gradient = jax.grad(lambda p: critic_loss(critic, p, noisy, targets, used))(parameters)
        change, optimizer_state = optimizer.update(gradient, optimizer_state, parameters)
        return (optax.apply_updates(parameters, change), optimizer_state), None

    def updates(carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        return jax.lax.scan(update, carry, jnp.arange(config.critic_updates))[0]

    return jax.lax.cond(used > 0, updates, lambda carry: carry, (parameters, optimizer_state))
