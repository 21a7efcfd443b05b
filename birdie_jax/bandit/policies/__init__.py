"""The policies, one file each. To add a policy, add a file and import it below."""

from birdie_jax.bandit.policies import (
    attribution,
    birdie,
    cross_effects,
    exp3s,
    fixed,
    gradients,
    learning_curves,
    pairs,
    progress,
    staged,
    thompson,
    uniform,
)
from birdie_jax.bandit.policies.registry import POLICIES, Policy, find_policy, register_policy

__all__ = [
    "POLICIES",
    "Policy",
    "attribution",
    "birdie",
    "cross_effects",
    "exp3s",
    "find_policy",
    "fixed",
    "gradients",
    "learning_curves",
    "pairs",
    "progress",
    "register_policy",
    "staged",
    "thompson",
    "uniform",
]
