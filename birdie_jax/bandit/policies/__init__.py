"""The policies: one file each. A new one is a new file here and a line below."""

from birdie_jax.bandit.policies import birdie, exp3s, fixed, staged, thompson, uniform
from birdie_jax.bandit.policies.registry import POLICIES, Policy, find_policy, register_policy

__all__ = [
    "POLICIES",
    "Policy",
    "birdie",
    "exp3s",
    "find_policy",
    "fixed",
    "register_policy",
    "staged",
    "thompson",
    "uniform",
]
