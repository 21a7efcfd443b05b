"""Policy exp3s: Exp3.S of Auer et al. 2002 ("The nonstochastic multiarmed bandit problem", section 8).

The weights follow the arms' rewards. At every decision all arms receive a small part of the total weight,
so an arm with poor rewards can recover. With q the mixture's own weights (1 / K in the paper):

    p_i = (1 - gamma) w_i / sum_j w_j + gamma q_i
    w_i <- w_i exp(eta q_i r_i / p_i) + e alpha q_i sum_j w_j

In the paper, one arm is drawn from p and only its reward is known, so r_i / p_i is an unbiased estimate.
Here every example of every batch is a draw. All arms are played, arm i in proportion to p_i, and r_i / p_i
is the gain of arm i's own loss per share of the data. An arm gets no credit for its effect on the losses of
other arms. In the paper, eta equals gamma. Here it is a separate setting, because a run has only some
dozens of decisions.
"""

import math

import jax
import jax.numpy as jnp

from birdie_jax.array_types import ArmVector, KeyData
from birdie_jax.bandit.policies.registry import Policy, register_policy
from birdie_jax.bandit.state import BanditState, current_row
from birdie_jax.bandit_config import BanditConfig


def even_log_weights(config: BanditConfig, num_arms: int, key: KeyData) -> ArmVector:
    """Return log(w / q) of each arm before the first reward, which is 0."""
    del config, key
    return jnp.zeros(num_arms)


def update_log_weights(state: BanditState) -> ArmVector:
    """Return log(w / q) after the rewards of the last action, for weights w that sum to 1."""
    row, settings = current_row(state), state.config.exp3s
    before = jnp.maximum(row - 1, 0)
    # For an arm without weight the ratio is 0 / 0, and has no effect.
    share = jnp.where(state.initial > 0, state.initial / jnp.maximum(state.actions[before], 1e-30), 0.0)
    gain = jnp.where(row > 0, settings.learning_rate * share * state.rewards[before], 0.0)
    grown = _normalise(state.policy_state, state.initial)
    shared = jnp.where(row > 0, jnp.log(jnp.maximum(math.e * settings.sharing, 1e-30)), -jnp.inf)
    updated = _normalise(jnp.logaddexp(grown + gain, shared), state.initial)
    # An arm without weight is not part of the sum, and its value would overflow float32.
    return jnp.where(state.initial > 0, updated, 0.0)


def exp3s_mixture(state: BanditState) -> ArmVector:
    """Return p, the next mixture."""
    exploration = state.config.exp3s.exploration
    weights = state.initial * jnp.exp(_normalise(state.policy_state, state.initial))
    return (1.0 - exploration) * weights / weights.sum() + exploration * state.initial


def _normalise(log_weights: ArmVector, initial: ArmVector) -> ArmVector:
    return log_weights - jax.nn.logsumexp(log_weights, b=initial)


register_policy(
    "exp3s", Policy(init_state=even_log_weights, update=update_log_weights, propose=exp3s_mixture)
)
