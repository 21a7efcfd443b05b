"""Reward running_scale: an arm's progress in units of what its loss has lately moved.

With d_k the fall of an arm's loss at observation k, and a the age of an observation,

    s^2 = sum_k rho^a d_k^2 / sum_k rho^a        rho = 1 - 1 / reward_memory
    reward = clip(d / (2 s), -1, 1)

so that a fall of the usual size earns a half, early in a run as late. It does not depend on the unit of the
loss, and each arm has a scale of its own: an arm that is nearly learned says as much as one that is not.
The price is that an arm that has stopped moving shows its noise at full size.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from birdie_jax.array_types import ArmVector
from birdie_jax.bandit.rewards.registry import loss_falls, register_reward
from birdie_jax.config_sections import BanditConfig

# The multiple of an arm's usual change that earns 1.
_FULL_REWARD = 2.0


def running_scale(
    config: BanditConfig, losses: Float[Array, "history arms"], row: Int[Array, ""]
) -> ArmVector:
    """Return the last fall of each arm's loss over the root mean square of its falls; 0 for no change."""
    falls = loss_falls(losses, row)
    age = jnp.maximum(row - jnp.arange(losses.shape[0]), 0)[:, None]
    weight = jnp.where(jnp.isnan(falls), 0.0, (1.0 - 1.0 / config.reward_memory) ** age)
    falls = jnp.where(jnp.isnan(falls), 0.0, falls)
    # Divided by the largest first: the square of a diverged loss need not fit float32.
    unit = jnp.max(jnp.abs(falls), axis=0)
    falls = falls / jnp.where(unit > 0, unit, 1.0)
    total = jnp.sum(weight, axis=0)
    scale = jnp.sqrt(jnp.sum(weight * falls**2, axis=0) / jnp.where(total > 0, total, 1.0))
    return jnp.clip(falls[row] / (_FULL_REWARD * jnp.where(scale > 0, scale, 1.0)), -1.0, 1.0)


register_reward("running_scale", running_scale)
