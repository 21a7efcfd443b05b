"""A policy that is registered outside the package works like a built-in policy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.bandit import POLICIES, Policy, init_bandit, observe, propose, register_policy
from birdie_jax.bandit.state import PROPOSING, current_row, decision_key
from birdie_jax.config import default_config, parse_config
from birdie_jax.errors import ConfigError

EPSILON, RATE = 0.25, 0.5


def no_values(config, num_arms, key):
    return {"values": jnp.zeros(num_arms)}


def update_values(state):
    """Move each arm's value towards its last reward, in proportion to its probability."""
    last = jnp.maximum(current_row(state) - 1, 0)
    values = state.policy_state["values"]
    return {"values": values + RATE * state.actions[last] * (state.rewards[last] - values)}


def epsilon_greedy(state):
    best = jax.nn.one_hot(jnp.argmax(state.policy_state["values"]), state.arms)
    explores = jax.random.uniform(decision_key(state, PROPOSING)) < EPSILON
    return jnp.where(explores, jnp.full(state.arms, 1 / state.arms), best)


@pytest.fixture
def policy():
    register_policy(
        "epsilon_greedy", Policy(init_state=no_values, update=update_values, propose=epsilon_greedy)
    )
    yield "epsilon_greedy"
    del POLICIES["epsilon_greedy"]


def configured(policy):
    config = default_config()
    config.bandit.policy = policy
    return parse_config(config).bandit


def test_a_custom_policy_learns_and_proposes_under_jit(policy):
    state = init_bandit(configured(policy), np.ones(4), np.arange(4), 30, jax.random.key(0))
    structure = jax.tree.structure(state)
    decide = jax.jit(lambda state, losses: propose(observe(state, losses)))
    losses, mixtures = np.full(4, 4.0, np.float32), []
    # Only arm 2 improves, and only through training on it.
    for _ in range(30):
        state = decide(state, losses)
        mixtures.append(np.asarray(state.mixture))
        losses = losses * np.where(np.arange(4) == 2, 1 - 0.3 * mixtures[-1], 1.0).astype(np.float32)
    assert jax.tree.structure(state) == structure
    assert np.argmax(state.policy_state["values"]) == 2
    mixtures = np.array(mixtures)
    greedy = mixtures[:, 2] == 1
    assert 0.5 < greedy[10:].mean() < 1
    explored = mixtures.max(axis=1) < 1
    assert explored.any()
    np.testing.assert_array_equal(mixtures[explored], np.full((explored.sum(), 4), 0.25))
    np.testing.assert_array_equal(state.actions[:30], mixtures)


def test_a_config_accepts_only_a_registered_policy(policy):
    assert configured(policy).policy == "epsilon_greedy"
    message = r"config\.bandit\.policy: found 'e_greedy'; allowed: epsilon_greedy, attribution, .*uniform$"
    with pytest.raises(ConfigError, match=message):
        configured("e_greedy")


def test_only_a_policy_that_proposes_changes_the_mixture(policy):
    changing = {name for name, known in POLICIES.items() if known.changes_mixture}
    assert set(POLICIES) - changing == {"fixed", "uniform"} and policy in changing


def test_a_policy_refuses_unsupported_settings():
    def needs_three(config, num_arms):
        if num_arms < 3:
            raise ValueError(f"needs_three: found {num_arms} arms; allowed: at least 3")

    register_policy("needs_three", Policy(check=needs_three))
    try:
        with pytest.raises(ValueError, match="needs_three: found 2 arms; allowed: at least 3"):
            init_bandit(configured("needs_three"), np.ones(2), np.arange(2), 3, jax.random.key(0))
    finally:
        del POLICIES["needs_three"]
