"""Policy birdie (Birdie, section 3.3): explore, or take the mixture that a critic rates best.

At every observation the critic learns the rewards of all actions so far. A proposal is random with
`explore_probability`; otherwise it is the best action by the critic's predictions (`proposals.py`).
"""

from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from birdie_jax.array_types import ArmVector, Key, KeyData, Scalar
from birdie_jax.bandit.critic import Critic, CriticState, decayed_parameters, make_critic
from birdie_jax.bandit.policies.registry import Policy, register_policy
from birdie_jax.bandit.proposals import (
    best_action,
    candidate_scores,
    check_proposal_settings,
    exploring_action,
)
from birdie_jax.bandit.state import (
    LEARNING,
    PROPOSING,
    BanditState,
    current_row,
    decision_key,
    history_steps,
)
from birdie_jax.bandit_config import BanditConfig


def critic_optimizer(config: BanditConfig, critic: Critic) -> optax.GradientTransformation:
    """Return AdamW with a constant learning rate, after clipping of the global gradient norm."""
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
    *,
    weights: ArmVector | float = 1.0,
) -> Float[Array, ""]:
    """Return the weighted squared error of the predicted rewards, summed over arms, averaged over steps."""
    predictions = cast(Array, critic.apply({"params": parameters}, steps, used))
    is_used = jnp.arange(steps.shape[0]) < used
    # Mask before squaring, so the unused part does not affect the gradient.
    error = jnp.where(is_used[:, None], predictions - targets, 0.0)
    return jnp.sum(weights * jnp.square(error)) / jnp.maximum(used, 1)


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
    weights: ArmVector | float = 1.0,
) -> tuple[PyTree, PyTree]:
    """Take `config.critic_updates` optimizer steps on the first `used` steps of a history.

    Each update multiplies every input by its own uniform factor from 1 - critic_noise to 1 + critic_noise.
    Without this noise, the critic would memorise the short history. If `used` is 0, nothing changes, not
    even by weight decay.

    Args:
        config: the number of updates, the noise, and the optimizer's settings.
        critic: the module that `make_critic` returns.
        parameters: the critic's parameters.
        optimizer_state: the state of `critic_optimizer(config, critic)`.
        steps: the critic's inputs (`critic_inputs`).
        targets: the class-scaled reward of each arm for each step's action.
        used: the number of steps with known rewards.
        key: the random key of the noise.
        weights: the weight of each arm's squared error.

    Returns:
        The parameters and the optimizer state after the updates.
    """
    optimizer = critic_optimizer(config, critic)

    def update(carry: tuple[PyTree, PyTree], index: Int[Array, ""]) -> tuple[tuple[PyTree, PyTree], None]:
        parameters, optimizer_state = carry
        noise = jax.random.uniform(jax.random.fold_in(key, index), steps.shape, minval=-1.0, maxval=1.0)
        noisy = steps * (1.0 + config.critic_noise * noise)
        gradient = jax.grad(lambda p: critic_loss(critic, p, noisy, targets, used, weights=weights))(
            parameters
        )
        change, optimizer_state = optimizer.update(gradient, optimizer_state, parameters)
        return (optax.apply_updates(parameters, change), optimizer_state), None

    def updates(carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        return jax.lax.scan(update, carry, jnp.arange(config.critic_updates))[0]

    return jax.lax.cond(used > 0, updates, lambda carry: carry, (parameters, optimizer_state))


@partial(jax.jit, static_argnums=(0, 1))
def init_critic(config: BanditConfig, num_arms: int, key_data: KeyData) -> CriticState:
    """Return an untrained critic of `num_arms` rewards and the first state of its optimizer."""
    one_step = jnp.zeros((1, 2 * num_arms), jnp.float32)
    key = jax.random.wrap_key_data(key_data, impl="threefry2x32")
    critic = make_critic(config, num_arms)
    parameters = critic.init(key, one_step, jnp.int32(1))["params"]
    return CriticState(parameters, critic_optimizer(config, critic).init(parameters))


def train_critic(state: BanditState) -> CriticState:
    """Return the critic after learning from every action in the history that has a known reward."""
    used = current_row(state)
    # Rewards are divided by the size n of their class, so the squared errors of a class sum to 1 / n.
    weights = 1.0 / state.class_scale if state.config.critic_error == "classes" else 1.0
    parameters, optimizer_state = learn(
        state.config,
        make_critic(state.config, state.arms),
        state.policy_state.parameters,
        state.policy_state.optimizer_state,
        steps=history_steps(state, used),
        targets=state.rewards * state.class_scale,
        used=used,
        key=decision_key(state, LEARNING),
        weights=weights,
    )
    return CriticState(parameters, optimizer_state)


def explore_or_exploit(state: BanditState) -> ArmVector:
    """Return a random action with `explore_probability`; else the action that the critic rates best."""
    explores_key, action_key, best_key = jax.random.split(decision_key(state, PROPOSING), 3)
    decision = jnp.maximum(state.count - 1, 0)
    probability = explore_probability(state.config, decision, state.decisions)
    return jax.lax.cond(
        jax.random.uniform(explores_key) < probability,
        lambda: exploring_action(action_key, state.groups, state.classes),
        lambda: best_action(state, best_key),
    )


def explore_probability(config: BanditConfig, decision: Int[Array, ""], num_decisions: int) -> Scalar:
    """Return the probability that decision number `decision` of `num_decisions`, from 0, explores.

    It is 1 for the share `explore_first` of all decisions. Over the next share `explore_decay`, it falls
    along half a cosine from `explore_from` to `explore_to`, and then stays there.
    """
    progress = decision.astype(jnp.float32) / num_decisions
    # A decay of length 0 is a step.
    fallen = (progress - config.explore_first) / max(config.explore_decay, 1e-6)
    height = 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.clip(fallen, 0.0, 1.0)))
    later = config.explore_to + (config.explore_from - config.explore_to) * height
    return jnp.where(progress < config.explore_first, 1.0, later)


register_policy(
    "birdie",
    Policy(
        check=check_proposal_settings,
        init_state=init_critic,
        update=train_critic,
        propose=explore_or_exploit,
        predict=lambda state: candidate_scores(state, state.mixture[None])[0],
    ),
)
