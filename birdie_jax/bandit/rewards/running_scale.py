"""Reward running_scale: an arm's progress in units of what its loss has lately moved.

With d the fall of an arm's loss, and s the mean of |d| over its last `reward_memory` observations,

    reward = clip(d / (2 s), -1, 1)

so that a fall of the usual size earns a half, early in a run as late. It does not depend on the unit of the
loss, and each arm has a scale of its own: an arm that is nearly learned says as much as one that is not.
The price is that an arm that has stopped moving shows its noise at full size.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from birdie_jax.array_types import ArmVector
from birdie_jax.bandit.rewards.registry import loss_falls, register_reward
from birdie_jax.bandit_config import BanditConfig

# The multiple of an arm's usual change that earns 1.
_FULL_REWARD = 2.0


def running_scale(
    config: BanditConfig, losses: Float[Array, "history arms"], row: Int[Array, ""]
) -> ArmVector:
    """Return the last fall of each arm's loss over twice the mean size of its falls; 0 for no change."""
    falls = loss_falls(losses, row)
    is_recent = jnp.arange(losses.shape[0])[:, None] > row - config.reward_memory
    is_known = is_recent & ~jnp.isnan(falls)
    sizes = jnp.sum(jnp.where(is_known, jnp.abs(falls), 0.0), axis=0)
    scale = sizes / jnp.maximum(jnp.sum(is_known, axis=0), 1)
    earned = falls[row] / (_FULL_REWARD * jnp.where(scale > 0, scale, 1.0))
    return jnp.where(jnp.isnan(earned), 0.0, jnp.clip(earned, -1.0, 1.0))


register_reward("running_scale", running_scale)
