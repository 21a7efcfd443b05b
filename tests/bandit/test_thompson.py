"""Policy thompson against the equations of a Gaussian process, in float64."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.bandit import init_bandit, observe, propose
from birdie_jax.bandit.policies.thompson import gain_posterior, vote
from birdie_jax.bandit_config import ThompsonConfig
from birdie_jax.config import BanditConfig

GROUPS = np.array([0, 0, 1, 2, 2])
ARMS, DECISIONS = GROUPS.size, 10
SETTINGS = ThompsonConfig(samples=32, exploration=0.1, memory=5, prior_deviation=0.8, noise_deviation=0.2)
CONFIG = BanditConfig(policy="thompson", thompson=SETTINGS)
posterior_of = jax.jit(gain_posterior)
vote_of = jax.jit(vote)


def with_history(seed, used, config=CONFIG, weights=(1, 2, 3, 1, 1)):
    """Return a bandit with `used` decisions of random mixtures and rewards, followed by junk rows."""
    rng = np.random.default_rng(seed)
    state = init_bandit(config, weights, GROUPS, DECISIONS, jax.random.key(seed))
    later = np.arange(DECISIONS + 1)[:, None] >= used
    actions = np.where(later, np.nan, rng.dirichlet(np.ones(ARMS), DECISIONS + 1))
    rewards = np.where(later, np.nan, rng.uniform(-1, 1, (DECISIONS + 1, ARMS)))
    return state.replace(
        actions=jnp.asarray(actions, jnp.float32),
        rewards=jnp.asarray(rewards, jnp.float32),
        count=jnp.int32(used + 1),
    )


def process_oracle(state, used):
    """Return the mean and the covariance of w given the rewards, computed in observation space."""
    actions = np.float64(state.actions[:used])
    sizes = np.bincount(GROUPS)
    earned = np.float64(state.rewards[:used]) @ (1 / sizes[GROUPS]) / sizes.size
    counts = 0.8 ** np.arange(used)[::-1]
    earned = earned - np.average(earned, weights=counts)
    prior = 0.8**2 * ((GROUPS[:, None] == GROUPS) + np.eye(ARMS)) / 2
    between = prior @ actions.T
    gain = between @ np.linalg.inv(actions @ between + np.diag(0.2**2 / counts))
    return gain @ earned, prior - gain @ between.T


@given(seed=st.integers(0, 2**31), used=st.integers(1, DECISIONS))
def test_posterior_matches_a_gaussian_process(seed, used):
    state = with_history(seed, used)
    mean, factor = (np.float64(part) for part in posterior_of(state))
    expected_mean, expected_covariance = process_oracle(state, used)
    np.testing.assert_allclose(mean, expected_mean, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(np.linalg.inv(factor @ factor.T), expected_covariance, atol=2e-3)


def test_without_observations_the_posterior_is_the_prior():
    mean, factor = posterior_of(with_history(0, 0))
    np.testing.assert_allclose(mean, 0, atol=1e-6)
    prior = 0.8**2 * ((GROUPS[:, None] == GROUPS) + np.eye(ARMS)) / 2
    np.testing.assert_allclose(np.linalg.inv(np.float64(factor) @ np.float64(factor).T), prior, atol=1e-4)


@given(seed=st.integers(0, 2**31), order=st.permutations(range(ARMS)))
def test_posterior_does_not_depend_on_the_order_of_arms(seed, order):
    state, order = with_history(seed, 6), np.array(order)
    permuted = state.replace(
        actions=state.actions[:, order],
        rewards=state.rewards[:, order],
        groups=state.groups[order],
        class_scale=state.class_scale[order],
    )
    np.testing.assert_allclose(posterior_of(permuted)[0], posterior_of(state)[0][order], atol=2e-4)


@given(seed=st.integers(0, 2**31), used=st.integers(0, DECISIONS))
def test_a_mixture_consists_of_votes_and_own_weights(seed, used):
    state = with_history(seed, used)
    mixture = np.asarray(vote_of(state))
    np.testing.assert_allclose(mixture.sum(), 1, rtol=1e-5)
    votes = (mixture - 0.1 * np.asarray(state.initial)) / 0.9 * 32
    np.testing.assert_allclose(votes, np.round(votes), atol=1e-4)
    np.testing.assert_array_equal(vote_of(state), mixture)


def test_votes_are_the_probabilities_of_being_the_best():
    many = dataclasses.replace(SETTINGS, samples=20_000, exploration=0.0)
    state = with_history(4, 3, dataclasses.replace(CONFIG, thompson=many))
    mean, covariance = process_oracle(state, 3)
    draws = np.random.default_rng(0).multivariate_normal(mean, covariance, 20_000)
    expected = np.bincount(draws.argmax(axis=1), minlength=ARMS) / 20_000
    assert expected.min() > 0.02 and expected.max() < 0.8
    np.testing.assert_allclose(vote_of(state), expected, atol=0.015)


@pytest.mark.sampled
@pytest.mark.parametrize(("prior", "noise"), [(100.0, 0.01), (0.01, 100.0)])
def test_extreme_settings_are_supported(prior, noise):
    ends = dataclasses.replace(SETTINGS, prior_deviation=prior, noise_deviation=noise)
    state = with_history(2, DECISIONS, dataclasses.replace(CONFIG, thompson=ends))
    mean, factor = gain_posterior(state)
    assert np.isfinite(mean).all() and np.isfinite(factor).all()
    np.testing.assert_allclose(np.asarray(vote(state)).sum(), 1, rtol=1e-5)


def test_an_arm_without_weight_gets_no_vote():
    mixture = np.asarray(vote_of(with_history(0, 4, weights=(0, 1, 1, 1, 1))))
    assert mixture[0] == 0 and mixture.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("reward", "wanted"), [("published", 0.6), ("learning_progress", 0.6), ("running_scale", 0.4)]
)
def test_thompson_finds_the_arm_that_helps_all_others(reward, wanted):
    """All losses fall with the probability of arm 2, at first 0.2, so an arm's own loss is no help.

    In units of its own scale, any steady progress earns one half, so the requirement is lowest there.
    """
    settings = ThompsonConfig(noise_deviation=0.1, exploration=0.1)
    config = BanditConfig(policy="thompson", reward=reward, thompson=settings)
    state = init_bandit(config, np.ones(ARMS), np.arange(ARMS), 30, jax.random.key(1))
    losses, shares = np.full(ARMS, 4.0, np.float32), []
    for _ in range(30):
        state = propose(observe(state, losses))
        shares.append(float(state.mixture[2]))
        losses = (losses * (1 - 0.15 * shares[-1])).astype(np.float32)
    assert np.mean(shares[-10:]) > wanted
