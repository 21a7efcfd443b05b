"""The settings of the policies that steer, as several studies compare them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

# The critic of the paper; `configs/tiny.py` has a smaller one.
CRITIC: Mapping[str, Any] = MappingProxyType(
    {
        "bandit.policy": "birdie",
        "bandit.critic_layers": 4,
        "bandit.critic_features": 256,
        "bandit.critic_state": 512,
        "bandit.candidates": 4096,
    }
)
PUBLISHED: Mapping[str, Any] = MappingProxyType(
    {**CRITIC, "bandit.candidate_prior": "arms", "eval.batches_per_arm": 2}
)
STEERING: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "published": PUBLISHED,
        "standardised": {
            **CRITIC,
            "bandit.reward": "standardised",
            "bandit.critic_error": "classes",
        },
        **{
            policy: {"bandit.policy": policy}
            for policy in (
                "pairs",
                "attribution",
                "cross_effects",
                "gradients",
                "learning_curves",
                "progress",
            )
        },
    }
)
# The recorded runs of `studies.steering` determine it.
BEST_STEERING = "progress"
