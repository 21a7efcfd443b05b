"""Policy exp3s against the equations of Exp3.S by Auer et al., in float64."""

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.bandit import init_bandit, observe, propose
from birdie_jax.bandit.policies.exp3s import exp3s_mixture, update_log_weights
from birdie_jax.bandit_config import Exp3SConfig
from birdie_jax.config import BanditConfig

ARMS, DECISIONS = 4, 12
ETA, GAMMA, ALPHA = 0.7, 0.15, 0.03
CONFIG = BanditConfig(
    policy="exp3s", exp3s=Exp3SConfig(learning_rate=ETA, exploration=GAMMA, sharing=ALPHA)
)


@jax.jit
def decide(state, rewards):
    """Set the rewards of the current action and choose the next one."""
    row = state.count - 1
    state = state.replace(
        actions=state.actions.at[row].set(state.mixture), rewards=state.rewards.at[row].set(rewards)
    )
    state = state.replace(count=state.count + 1)
    state = state.replace(policy_state=update_log_weights(state))
    return state.replace(mixture=exp3s_mixture(state))


def mixtures_of(weights, rewards):
    state = init_bandit(CONFIG, weights, np.arange(ARMS), DECISIONS, jax.random.key(0))
    state = state.replace(count=state.count + 1)
    found = [np.asarray(state.mixture)]
    for earned in rewards:
        state = decide(state, np.asarray(earned, np.float32))
        found.append(np.asarray(state.mixture))
    return np.array(found)


def exp3s_oracle(q, rewards):
    weights, mixtures = q.copy(), [q]
    for earned in rewards:
        estimate = np.array(earned) / mixtures[-1]
        weights = weights * np.exp(ETA * q * estimate) + np.e * ALPHA * q * weights.sum()
        mixtures.append((1 - GAMMA) * weights / weights.sum() + GAMMA * q)
    return np.array(mixtures)


weights_of_arms = st.lists(st.floats(0.05, 1), min_size=ARMS, max_size=ARMS)
some_rewards = st.lists(
    st.lists(st.floats(-1, 1), min_size=ARMS, max_size=ARMS), min_size=1, max_size=DECISIONS
)


@given(weights=weights_of_arms, rewards=some_rewards)
def test_mixtures_follow_exp3s(weights, rewards):
    q = np.array(weights) / np.sum(weights)
    found = mixtures_of(weights, rewards)
    np.testing.assert_allclose(found, exp3s_oracle(q, rewards), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)
    assert np.all(found >= GAMMA * q * (1 - 1e-5))


def test_an_arm_without_weight_keeps_probability_zero():
    """Without sharing, every loss of the others would raise the logarithm of its weight."""
    config = BanditConfig(policy="exp3s", exp3s=Exp3SConfig(learning_rate=100.0, sharing=0.0))
    state = init_bandit(config, [1, 1, 0], [0, 1, 2], 8, jax.random.key(0))
    for growth in range(8):
        state = propose(observe(state, np.full(3, 2.0**growth)))
        assert np.isfinite(state.mixture).all()
        assert state.mixture[2] == 0
