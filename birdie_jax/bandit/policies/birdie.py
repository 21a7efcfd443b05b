"""Policy birdie (Birdie, section 3.3): explore, or take what a critic of the history finds best.

At every observation the critic learns the rewards of all actions so far. A proposal is random with
`explore_probability`; otherwise it is the best action by the critic's predictions (`proposals.py`).
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from birdie_jax.array_types import ArmVector, KeyData, Scalar
from birdie_jax.bandit.critic import CriticState, make_critic
from birdie_jax.bandit.learning import critic_optimizer, learn
from birdie_jax.bandit.policies.registry import Policy, register_policy
from birdie_jax.bandit.proposals import best_action, check_proposal_settings, exploring_action
from birdie_jax.bandit.state import (
    LEARNING,
    PROPOSING,
    BanditState,
    current_row,
    decision_key,
    history_steps,
)
from birdie_jax.bandit_config import BanditConfig


@partial(jax.jit, static_argnums=(0, 1))
def init_critic(config: BanditConfig, num_arms: int, key_data: KeyData) -> CriticState:
    """Return an untrained critic of `num_arms` rewards and the first state of its optimizer."""
    one_step = jnp.zeros((1, 2 * num_arms), jnp.float32)
    key = jax.random.wrap_key_data(key_data, impl="threefry2x32")
    critic = make_critic(config, num_arms)
    parameters = critic.init(key, one_step, jnp.int32(1))["params"]
    return CriticState(parameters, critic_optimizer(config, critic).init(parameters))


def train_critic(state: BanditState) -> CriticState:
    """Return the critic after learning from every action of the history whose reward is known."""
    used = current_row(state)
    parameters, optimizer_state = learn(
        state.config,
        make_critic(state.config, state.arms),
        state.policy_state.parameters,
        state.policy_state.optimizer_state,
        steps=history_steps(state, used),
        targets=state.rewards * state.class_scale,
        used=used,
        key=decision_key(state, LEARNING),
    )
    return CriticState(parameters, optimizer_state)


def explore_or_exploit(state: BanditState) -> ArmVector:
    """Return a random action with `explore_probability`, else the one that the critic finds best."""
    explores_key, action_key, best_key = jax.random.split(decision_key(state, PROPOSING), 3)
    decision = jnp.maximum(state.count - 1, 0)
    probability = explore_probability(state.config, decision, state.decisions)
    return jax.lax.cond(
        jax.random.uniform(explores_key) < probability,
        lambda: exploring_action(action_key, state.groups, state.classes),
        lambda: best_action(state, best_key),
    )


def explore_probability(config: BanditConfig, decision: Int[Array, ""], num_decisions: int) -> Scalar:
    """Return the probability that decision 0, 1, .. of `num_decisions` explores.

    It is 1 for the first `explore_first` of all decisions, then falls along half a cosine from
    `explore_from` to `explore_to` over the next `explore_decay`, and stays there.
    """
    progress = decision.astype(jnp.float32) / num_decisions
    # A decay of no length is a step down.
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
    ),
)
