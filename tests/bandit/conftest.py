"""Fixtures: small bandits with a history."""

import jax
import numpy as np
import pytest

from birdie_jax.bandit import init_bandit, observe, propose
from birdie_jax.config import BanditConfig

GROUPS = [0, 0, 0, 1, 2, 2]


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """Compile the package's jitted functions like `tests/quick_jit.py`, because compilation dominates."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="session")
def small():
    """Return a function that makes a BanditConfig with a small critic and the given fields."""

    def make(**fields):
        sizes = {
            "policy": "birdie",
            "critic_layers": 2,
            "critic_features": 16,
            "critic_state": 24,
            "critic_updates": 40,
            "critic_learning_rate": 2e-3,
            "candidates": 66,
            "average_best": 4,
            "top_arms": 2,
        }
        return BanditConfig(**(sizes | fields))

    return make


@pytest.fixture(scope="session")
def after():
    """Return a function that runs a new bandit with 6 arms for some of its 8 decisions."""

    def run(config, decisions):
        generator = np.random.default_rng(0)
        state = init_bandit(config, np.arange(1, 7), GROUPS, 8, jax.random.key(0))
        losses = generator.uniform(2, 5, 6).astype(np.float32)
        for _ in range(decisions):
            state = propose(observe(state, losses))
            losses = losses * generator.uniform(0.85, 1.0, 6).astype(np.float32)
        return observe(state, losses)

    return run
