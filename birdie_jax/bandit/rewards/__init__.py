"""The rewards: one file each. A new one is a new file here and a name below."""

from birdie_jax.bandit.rewards import learning_progress, published, running_scale
from birdie_jax.bandit.rewards.registry import REWARDS, Reward, find_reward, register_reward

__all__ = [
    "REWARDS",
    "Reward",
    "find_reward",
    "learning_progress",
    "published",
    "register_reward",
    "running_scale",
]
