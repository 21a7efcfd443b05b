"""The bandit as a whole: every arm's loss falls in proportion to the probability of one arm.

The reward is cubic in the relative change, so the fall is large: 15 % of the loss per decision with all
probability on that arm. At the uniform mixture of six arms it is 2.5 %, which earns 0.05 at a loss of 4.
"""

import dataclasses

import jax
import numpy as np
import pytest

from birdie_jax.bandit import init_bandit, observe, propose
from birdie_jax.config import BanditConfig

ARMS, DECISIONS, REWARDING, LAST = 6, 40, 4, 15


def mean_of_last_mixtures(seed, policy="birdie", critic="gated_ssm", propose=propose, learns=True):
    config = BanditConfig(
        policy=policy,
        critic=critic,
        critic_layers=2,
        critic_features=32,
        critic_state=32,
        critic_updates=50,
        critic_learning_rate=2e-3,
        candidates=256,
    )
    state = init_bandit(config, np.ones(ARMS), np.arange(ARMS), DECISIONS, jax.random.key(seed))
    untrained = state.policy_state
    losses = np.full(ARMS, 4.0, np.float32)
    mixtures = []
    for _ in range(DECISIONS):
        state = observe(state, losses)
        state = propose(state if learns else state.replace(policy_state=untrained))
        mixtures.append(np.asarray(state.mixture))
        losses = (losses * (1 - 0.15 * mixtures[-1][REWARDING])).astype(np.float32)
    return np.mean(mixtures[-LAST:], axis=0)


def finds_the_rewarding_arm(mixture):
    others = np.delete(mixture, REWARDING)
    return mixture[REWARDING] > 2.5 / ARMS and mixture[REWARDING] > 2 * others.max()


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["gated_ssm", "transformer"])
def test_birdie_finds_the_rewarding_arm(critic):
    assert finds_the_rewarding_arm(mean_of_last_mixtures(0, critic=critic))


@pytest.mark.slow
def test_top_arms_find_the_rewarding_arm():
    def propose_top_arm(state):
        by_arm = dataclasses.replace(state.config, selection="top_arms", top_arms=1)
        return propose(state.replace(config=by_arm)).replace(config=state.config)

    assert finds_the_rewarding_arm(mean_of_last_mixtures(1, propose=propose_top_arm))


def test_the_uniform_policy_does_not_find_the_rewarding_arm():
    mixture = mean_of_last_mixtures(0, policy="uniform")
    np.testing.assert_allclose(mixture, 1 / ARMS, rtol=1e-5)
    assert not finds_the_rewarding_arm(mixture)


@pytest.mark.slow
def test_a_critic_that_never_learns_does_not_find_the_rewarding_arm():
    assert not finds_the_rewarding_arm(mean_of_last_mixtures(0, learns=False))
