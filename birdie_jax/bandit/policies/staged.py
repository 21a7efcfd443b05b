"""Policy staged: a schedule of mixtures, with a start for each as a fraction of the run's decisions.

    config.bandit.policy = "staged"
    config.bandit.stages = "0: causal_lm=1; 0.25: causal_lm=1, copying=3, prefix_lm=1"

A stage has a start in [0, 1) and weights of classes. Classes that it does not name have weight 0. The
weight of a class is split among its arms by the mixture's own weights. The policy reads no rewards.
"""

import math
import re

import jax.numpy as jnp
import numpy as np

from birdie_jax.array_types import ArmVector
from birdie_jax.bandit.classes import over_arms
from birdie_jax.bandit.policies.registry import Policy, register_policy
from birdie_jax.bandit.state import BanditState
from birdie_jax.bandit_config import BanditConfig
from birdie_jax.errors import nearest_first, shown

_ALLOWED = "stages such as '0: causal_lm=1; 0.5: causal_lm=1, copying=2'"


def parse_stages(text: str) -> list[tuple[float, dict[str, float]]]:
    """Return the start and the class weights of every stage.

    Raises:
        ValueError: the text does not have this format, or a start or a weight is invalid.
    """
    stages = []
    for number, stage in enumerate(part.strip() for part in text.split(";")):
        start, colon, listed = stage.partition(":")
        if not colon:
            raise ValueError(f"bandit.stages: found {shown(stage)}; allowed: {_ALLOWED}")
        share = _number(start, "the start of a stage")
        previous = stages[-1][0] if stages else None
        if share >= 1 or (share != 0 if previous is None else share <= previous):
            raise ValueError(
                f"bandit.stages: found the start {shown(start.strip())} of stage {number + 1}; "
                "allowed: 0 for the first, then growing shares of the run, below 1"
            )
        weights = {}
        for entry in listed.split(","):
            named = re.fullmatch(r"\s*([^\s=]+)\s*=\s*(\S+)\s*", entry)
            if not named or named[1] in weights:
                raise ValueError(
                    f"bandit.stages: found {shown(entry.strip())}; "
                    "allowed: each class once, with its weight: copying=2"
                )
            weights[named[1]] = _number(named[2], "a weight")
        if not any(weights.values()):
            raise ValueError(f"bandit.stages: found {shown(stage)}; allowed: a weight above 0")
        stages.append((share, weights))
    return stages


def check_stages(config: BanditConfig, class_names: tuple[str, ...], num_decisions: int) -> None:
    """Check that the stages name known classes, and that each stage has a decision.

    Raises:
        ValueError: there are no stages, the format is invalid, a class is unknown, or a stage has no
            decision.
    """
    stages = parse_stages(config.stages)
    ends = [*first_decisions(stages, num_decisions)[1:], num_decisions]
    for (start, _), first, end in zip(stages, first_decisions(stages, num_decisions), ends, strict=True):
        if first >= end:
            raise ValueError(
                f"bandit.stages: found a stage from {start:g} to the next with none of the run's "
                f"{num_decisions} decisions; allowed: stages with a decision, or a smaller "
                "bandit.every_steps"
            )
    for _, weights in stages:
        for name in weights:
            if name not in class_names:
                raise ValueError(
                    f"bandit.stages: found the class {shown(name)}; allowed: "
                    f"{nearest_first(name, class_names)}"
                )


def first_decisions(stages: list[tuple[float, dict[str, float]]], num_decisions: int) -> list[int]:
    """Return the number of each stage's first decision, which is the first at or after its start."""
    return [math.ceil(start * num_decisions - 1e-9) for start, _ in stages]


def stage_mixture(state: BanditState) -> ArmVector:
    """Return the mixture of the current decision's stage."""
    stages = parse_stages(state.config.stages)
    by_class = np.array([[weights.get(name, 0.0) for name in state.class_names] for _, weights in stages])
    by_class = jnp.asarray(by_class / by_class.sum(axis=1, keepdims=True), jnp.float32)
    first = jnp.asarray(first_decisions(stages, state.decisions), jnp.int32)
    decision = jnp.maximum(state.count - 1, 0)
    return over_arms(state, by_class[jnp.sum(first <= decision) - 1])


def _number(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1e9:
        raise ValueError(f"bandit.stages: found {shown(text.strip())} as {what}; allowed: 0 to 1e9")
    return number


register_policy("staged", Policy(check_classes=check_stages, propose=stage_mixture, reads_losses=False))
