"""Policy fixed: the mixture's own weights at every step, like the EMNLP paper's fixed-ratio baselines."""

from birdie_jax.bandit.policies.registry import Policy, register_policy

register_policy("fixed", Policy())
