"""Every reward against its formula in float64, and the rules of all rewards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.bandit import REWARDS, init_bandit, observe, propose, register_reward, reward
from birdie_jax.config import BanditConfig, default_config, parse_config
from birdie_jax.errors import ConfigError

ROWS, ARMS, MEMORY = 12, 5, 4
CONFIG = BanditConfig(reward_memory=MEMORY)
COMPILED = {
    name: jax.jit(lambda losses, row, f=function: f(CONFIG, losses, row))
    for name, function in REWARDS.items()
}
SCALED = ("running_scale", "learning_progress", "absolute_progress", "standardised")


def falls_until(losses, row):
    """Return each fall up to `row`, oldest first; NaN where one of its two losses is not finite."""
    falls = losses[:row] - losses[1 : row + 1]
    return np.where(np.isfinite(falls), falls, np.nan)


def running_scale_oracle(losses, row):
    earned = []
    for falls in falls_until(losses, row).T:
        known = [abs(fall) for fall in falls[-MEMORY:] if not np.isnan(fall)]
        if np.isnan(falls[-1]):
            earned.append(np.nan)
            continue
        size = sum(known) / len(known)
        earned.append(np.clip(falls[-1] / (2 * size), -1, 1) if size else 0.0)
    return np.array(earned)


def learning_progress_oracle(losses, row, change=lambda falls: falls):
    falls = change(falls_until(losses, row))
    recent = np.sort([fall for fall in falls[-MEMORY:].ravel() if not np.isnan(fall)])

    def quantile(share):
        place = share * (len(recent) - 1)
        low = int(place)
        high = min(low + 1, len(recent) - 1)
        return recent[low] + (place - low) * (recent[high] - recent[low])

    low, high = quantile(0.2), quantile(0.8)
    return np.clip(2 * (falls[-1] - low) / (high - low) - 1, -1, 1)


def standardised_oracle(losses, row):
    earned = []
    for falls in falls_until(losses, row).T:
        known = np.array([fall for fall in falls[-MEMORY:] if not np.isnan(fall)])
        size = known.std() if known.size else 0.0
        earned.append(np.clip((falls[-1] - known.mean()) / (2 * size), -1, 1) if size else falls[-1] * 0)
    return np.array(earned)


ORACLES = {
    "standardised": standardised_oracle,
    "published": lambda losses, row: np.asarray(reward(losses[row - 1], losses[row])),
    "running_scale": running_scale_oracle,
    "learning_progress": learning_progress_oracle,
    "absolute_progress": lambda losses, row: learning_progress_oracle(losses, row, np.abs),
}


def some_losses(seed=0, rows=ROWS):
    """Return noisy losses that fall fast and then slowly."""
    rng = np.random.default_rng(seed)
    fall = np.exp(-0.5 * np.arange(rows)[:, None] * rng.uniform(0.2, 1, ARMS))
    return (1 + 3 * fall + 0.01 * rng.normal(size=(rows, ARMS))).astype(np.float32)


@pytest.mark.parametrize("name", REWARDS)
def test_rewards_match_the_formula_in_float64(name):
    losses = some_losses()
    for row in (2, 3, 6, ROWS - 1):
        spoilt = np.where(np.arange(ROWS)[:, None] > row, np.nan, losses)
        expected = ORACLES[name](losses.astype(np.float64), row)
        found = COMPILED[name](spoilt, jnp.int32(row))
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)
        assert name == "published" or 0.05 < np.abs(expected).mean() < 0.95


@pytest.mark.parametrize("name", SCALED)
def test_the_scale_ignores_losses_that_are_not_finite(name):
    losses = some_losses()
    losses[4, 1], losses[5, 2], losses[7, 3] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        expected = ORACLES[name](losses.astype(np.float64), 8)
    found = np.asarray(COMPILED[name](losses, jnp.int32(8)))
    assert np.isfinite(found).all()
    finite = np.isfinite(expected)
    assert finite.tolist() == [True, True, True, False, True]
    np.testing.assert_allclose(found[finite], expected[finite], rtol=2e-4, atol=2e-4)


histories = st.tuples(
    st.integers(0, 2**32 - 1), st.integers(1, ROWS - 1), st.floats(1e-3, 1e3), st.permutations(range(ARMS))
)


@pytest.mark.parametrize("name", REWARDS)
@given(history=histories)
def test_rewards_are_bounded_and_independent_of_the_order_of_arms(name, history):
    seed, row, unit, order = history
    losses = some_losses(seed) * np.float32(unit)
    found = np.asarray(COMPILED[name](losses, jnp.int32(row)))
    assert np.all(np.abs(found) <= 1)
    permuted = COMPILED[name](losses[:, list(order)], jnp.int32(row))
    np.testing.assert_allclose(permuted, found[list(order)], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SCALED)
@given(history=histories)
def test_rewards_do_not_depend_on_the_unit_of_the_loss(name, history):
    seed, row, unit, _ = history
    losses = some_losses(seed)
    found = COMPILED[name](losses, jnp.int32(row))
    # A power of two, so multiplication in float32 is exact.
    scaled = COMPILED[name](losses * np.float32(2.0 ** np.round(np.log2(unit))), jnp.int32(row))
    np.testing.assert_allclose(scaled, found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", REWARDS)
def test_constant_losses_earn_nothing(name):
    still = np.full((ROWS, ARMS), 2.0, np.float32)
    np.testing.assert_array_equal(COMPILED[name](still, jnp.int32(6)), 0)


@pytest.mark.parametrize("name", SCALED)
def test_losses_of_any_size_are_supported(name):
    losses = (some_losses().astype(np.float64) * 1e30).astype(np.float32)
    expected = ORACLES[name](losses.astype(np.float64), 6)
    np.testing.assert_allclose(COMPILED[name](losses, jnp.int32(6)), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", REWARDS)
def test_the_history_contains_the_rewards(name):
    config = BanditConfig(policy="fixed", reward=name, reward_memory=MEMORY)
    state = init_bandit(config, np.ones(ARMS), np.arange(ARMS), ROWS - 3, jax.random.key(0))
    losses = some_losses(3)
    losses[4, 1] = np.nan
    for measured in losses:
        state = propose(observe(state, measured))
    # After two unplanned observations, the history has dropped two rows.
    np.testing.assert_array_equal(state.losses, losses[2:])
    expected = np.asarray(COMPILED[name](losses, jnp.int32(ROWS - 1)))
    np.testing.assert_allclose(state.rewards[-2], expected, rtol=1e-2, atol=1e-2)
    np.testing.assert_array_equal(state.rewards[1:3, 1], 0)
    assert np.abs(np.asarray(state.rewards[:2])).max() > 0.01


def test_a_config_accepts_a_registered_reward():
    register_reward("plain_fall", lambda config, losses, row: losses[row - 1] - losses[row])
    try:
        config = default_config()
        config.bandit.reward, config.bandit.policy = "plain_fall", "fixed"
        state = init_bandit(parse_config(config).bandit, [1, 1], [0, 1], 3, jax.random.key(0))
        state = observe(observe(state, np.array([3.0, 2.0])), np.array([2.5, 2.25]))
        np.testing.assert_array_equal(state.rewards[0], [0.5, -0.25])
    finally:
        del REWARDS["plain_fall"]


def test_an_unknown_reward_is_refused_by_name():
    names = "published, running_scale, learning_progress, absolute_progress, standardised"
    config = default_config()
    config.bandit.reward = "loss"
    with pytest.raises(ConfigError, match=f"^config.bandit.reward: found 'loss'; allowed: {names}$"):
        parse_config(config)
    assert parse_config(default_config()).bandit.reward == "published"
