"""What a reward is, what several of them read, and every reward by its name."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from birdie_jax.array_types import ArmVector
from birdie_jax.bandit_config import BanditConfig

Reward = Callable[[BanditConfig, Float[Array, "history arms"], Int[Array, ""]], ArmVector]
"""(config, losses of every observation, row of the newest) -> what the action before that row earned.

It is called from the second observation on, is traced by `jax.jit`, and must not read rows after the newest
one, which are unused. A loss may be NaN or infinite in any row; where one of the last two is, the arm's
reward is set to 0 whatever the function returns. Rewards are within [-1, 1]. All that a reward remembers is
the history, so that it adds nothing to a checkpoint.
"""

REWARDS: dict[str, Reward] = {}


def register_reward(name: str, reward: Reward) -> None:
    """Make `reward` known as `bandit.reward = name`.

    Raises:
        ValueError: there is a reward of that name.
    """
    if name in REWARDS:
        raise ValueError(f"register_reward: found a second reward {name!r}; allowed: a new name")
    REWARDS[name] = reward


def find_reward(name: str) -> Reward:
    """Return the reward called `name`.

    Raises:
        ValueError: there is none.
    """
    if name not in REWARDS:
        raise ValueError(f"bandit.reward: found {name!r}; allowed: {', '.join(REWARDS)}")
    return REWARDS[name]


def loss_falls(losses: Float[Array, "history arms"], row: Int[Array, ""]) -> Float[Array, "history arms"]:
    """Return by how much each loss fell from the observation before to each row, in nats.

    NaN in row 0, which has none before it, after `row`, and where one of the two losses is not finite.
    """
    before = jnp.roll(losses, 1, axis=0)
    number = jnp.arange(losses.shape[0])[:, None]
    known = (number >= 1) & (number <= row) & jnp.isfinite(before) & jnp.isfinite(losses)
    return jnp.where(known, before - losses, jnp.nan)
