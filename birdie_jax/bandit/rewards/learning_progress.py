"""Rewards learning_progress and absolute_progress: where a loss falls among the recent falls of all arms.

Graves et al. 2017 ("Automated Curriculum Learning for Neural Networks", section 2.3) map a progress d by
two quantiles of the progress so far, of all tasks together, linearly to [-1, 1]:

    reward = clip(2 (d - q_20) / (q_80 - q_20) - 1, -1, 1)

Theirs are quantiles of a random sample of all history; here of the last `reward_memory` observations, for
what a loss moves shrinks by orders of magnitude over a run. `learning_progress` takes d, the fall of the
arm's loss, with its sign; `absolute_progress` takes |d|: an arm that is being forgotten is learnable too
(Oudeyer et al. 2007). All arms share one scale, so that an arm that has stopped moving earns little.
"""

from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from birdie_jax.array_types import ArmVector
from birdie_jax.bandit.rewards.registry import loss_falls, register_reward
from birdie_jax.bandit_config import BanditConfig

_LOW, _HIGH = 0.2, 0.8


def learning_progress(
    config: BanditConfig,
    losses: Float[Array, "history arms"],
    row: Int[Array, ""],
    *,
    absolute: bool = False,
) -> ArmVector:
    """Return each arm's last progress, on the scale of all arms' recent progress.

    Where the two quantiles are equal, what is above them earns 1, what is below -1, and what is there 0.

    Args:
        config: `reward_memory`, the observations whose progress makes the scale.
        losses: the losses of every observation.
        row: the newest observation.
        absolute: whether a loss that rises counts as progress too.
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
