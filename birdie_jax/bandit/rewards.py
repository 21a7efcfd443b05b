"""The type of a reward, and the registry of rewards."""

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from birdie_jax.array_types import ArmVector
from birdie_jax.bandit.reward import reward
from birdie_jax.bandit_config import BanditConfig
from birdie_jax.registry import Registry

Reward = Callable[[BanditConfig, Float[Array, "history arms"], Int[Array, ""]], ArmVector]
"""(config, losses of every observation, newest row) -> the rewards of the action before that row.

The bandit calls it from the second observation on, and `jax.jit` traces it. It must not read rows after the
newest row; they are unused. A loss may be NaN or infinite in any row. If one of the last two is, the bandit
sets the arm's reward to 0. Rewards are within [-1, 1]. A reward has no state except the history, so it adds
nothing to a checkpoint.
"""

REWARDS: Registry[Reward] = Registry("bandit.reward")
"""The rewards, by the names that `config.bandit.reward` accepts."""

register_reward = REWARDS.register
find_reward = REWARDS.find


def loss_falls(losses: Float[Array, "history arms"], row: Int[Array, ""]) -> Float[Array, "history arms"]:
    """Return the fall of each loss from the previous observation to each row, in nats.

    The fall is NaN in row 0, in rows after `row`, and where one of the two losses is not finite.
    """
    before = jnp.roll(losses, 1, axis=0)
    number = jnp.arange(losses.shape[0])[:, None]
    known = (number >= 1) & (number <= row) & jnp.isfinite(before) & jnp.isfinite(losses)
    return jnp.where(known, before - losses, jnp.nan)


def _recent_falls(
    config: BanditConfig, losses: Float[Array, "history arms"], row: Int[Array, ""]
) -> tuple[Float[Array, "history arms"], Bool[Array, "history arms"]]:
    """Return all falls, and a mask of the known ones within the last `reward_memory` observations."""
    falls = loss_falls(losses, row)
    is_recent = jnp.arange(losses.shape[0])[:, None] > row - config.reward_memory
    return falls, is_recent & ~jnp.isnan(falls)


def published(config: BanditConfig, losses: Float[Array, "history arms"], row: Int[Array, ""]) -> ArmVector:
    """Return `reward` of the last two losses, the formula of the Birdie authors' code.

    It is cubic in the relative change. Early actions earn 1 or -1, and late actions earn almost nothing.
    """
    del config
    return reward(losses[jnp.maximum(row - 1, 0)], losses[row])


register_reward("published", published)


# With d the fall of an arm's loss, and s the mean of |d| over its last `reward_memory` observations,
#
#     reward = clip(d / (2 s), -1, 1)
#
# A fall of the usual size earns one half, both early and late in a run. The reward does not depend on the
# unit of the loss. Each arm has its own scale, so nearly learned arms count as much as others. The
# drawback is that an arm whose loss no longer changes shows its noise at full size.

# The multiple of an arm's usual change that earns 1.
_FULL_REWARD = 2.0


def running_scale(
    config: BanditConfig, losses: Float[Array, "history arms"], row: Int[Array, ""]
) -> ArmVector:
    """Return the last fall of each arm's loss divided by twice the mean size of its falls."""
    falls, is_known = _recent_falls(config, losses, row)
    sizes = jnp.sum(jnp.where(is_known, jnp.abs(falls), 0.0), axis=0)
    scale = sizes / jnp.maximum(jnp.sum(is_known, axis=0), 1)
    earned = falls[row] / (_FULL_REWARD * jnp.where(scale > 0, scale, 1.0))
    return jnp.where(jnp.isnan(earned), 0.0, jnp.clip(earned, -1.0, 1.0))


register_reward("running_scale", running_scale)


# Graves et al. 2017 ("Automated Curriculum Learning for Neural Networks", section 2.3) map a progress d
# linearly to [-1, 1], with two quantiles of the past progress on all tasks:
#
#     reward = clip(2 (d - q_20) / (q_80 - q_20) - 1, -1, 1)
#
# They use the quantiles of a random sample of the whole history. This code uses the last `reward_memory`
# observations, because changes of a loss shrink by orders of magnitude over a run. `learning_progress`
# uses d, the fall of the arm's loss, with its sign. `absolute_progress` uses |d|, because a forgotten arm
# is learnable too (Oudeyer et al. 2007). All arms share one scale, so an arm whose loss no longer changes
# earns little.

_LOW, _HIGH = 0.2, 0.8


def learning_progress(
    config: BanditConfig,
    losses: Float[Array, "history arms"],
    row: Int[Array, ""],
    *,
    absolute: bool = False,
) -> ArmVector:
    """Return each arm's last progress, on the scale of all arms' recent progress.

    If the two quantiles are equal, progress above them earns 1, below them -1, and equal to them 0.

    Args:
        config: the configuration; `reward_memory` is the number of observations that set the scale.
        losses: the losses of every observation.
        row: the newest observation.
        absolute: whether a rising loss also counts as progress.
    """
    falls = loss_falls(losses, row)
    progress = jnp.abs(falls) if absolute else falls
    is_recent = jnp.arange(losses.shape[0])[:, None] > row - config.reward_memory
    low, high = jnp.nanquantile(jnp.where(is_recent, progress, jnp.nan), jnp.array([_LOW, _HIGH]))
    above, width = progress[row] - low, high - low
    scaled = jnp.where(width > 0, 2.0 * above / jnp.where(width > 0, width, 1.0) - 1.0, jnp.sign(above))
    return jnp.where(jnp.isnan(scaled), 0.0, jnp.clip(scaled, -1.0, 1.0))


register_reward("learning_progress", learning_progress)
register_reward("absolute_progress", partial(learning_progress, absolute=True))


# With m and v the mean and the variance of an arm's falls over its last `reward_memory` observations,
#
#     reward = clip((d - m) / (2 sqrt(v)), -1, 1)
#
# A steady fall of a loss, independent of the mixture, earns nothing. With `running_scale` it earns one half
# at every decision.


def standardised(
    config: BanditConfig, losses: Float[Array, "history arms"], row: Int[Array, ""]
) -> ArmVector:
    """Return each arm's last fall minus its recent mean, divided by twice the standard deviation."""
    falls, is_known = _recent_falls(config, losses, row)
    known = jnp.where(is_known, falls, 0.0)
    # The square of a small fall can underflow float32.
    largest = jnp.max(jnp.abs(known), axis=0)
    falls = falls / jnp.where(largest > 0, largest, 1.0)
    number = jnp.maximum(jnp.sum(is_known, axis=0), 1)
    mean = jnp.sum(jnp.where(is_known, falls, 0.0), axis=0) / number
    variance = jnp.sum(jnp.where(is_known, jnp.square(falls - mean), 0.0), axis=0) / number
    earned = (falls[row] - mean) / (_FULL_REWARD * jnp.sqrt(jnp.where(variance > 0, variance, 1.0)))
    return jnp.where(jnp.isnan(earned), 0.0, jnp.clip(earned, -1.0, 1.0))


register_reward("standardised", standardised)
