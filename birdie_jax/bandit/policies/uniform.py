"""Policy uniform: every arm has the same probability at every step."""

import jax.numpy as jnp

from birdie_jax.array_types import ArmVector
from birdie_jax.bandit.policies.registry import Policy, register_policy


def uniform_mixture(weights: ArmVector) -> ArmVector:
    """Return the uniform mixture over the arms."""
    return jnp.full(weights.shape, 1.0 / weights.size, jnp.float32)


register_policy("uniform", Policy(initial_mixture=uniform_mixture))
