"""The policies: one file each. A new one is a new file here and a line below."""

from birdie_jax.bandit.policies import birdie, fixed, uniform
from birdie_jax.bandit.policies.registry import POLICIES, Policy, find_policy, register_policy

__all__ = ["POLICIES", "Policy", "birdie", "find_policy", "fixed", "register_policy", "uniform"]
