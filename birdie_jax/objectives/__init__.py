"""Objectives: an array of text tokens becomes an example, a context to read and a target to write."""

from birdie_jax.objectives.arms import Arm, Mixture, mixture_from_arms
from birdie_jax.objectives.example import Example
from birdie_jax.objectives.mixtures import MIXTURES, make_mixture
from birdie_jax.objectives.objective import Objective, UnsuitableText
from birdie_jax.objectives.registry import OBJECTIVES, make_objective

__all__ = [
    "MIXTURES",
    "OBJECTIVES",
    "Arm",
    "Example",
    "Mixture",
    "Objective",
    "UnsuitableText",
    "make_mixture",
    "make_objective",
    "mixture_from_arms",
]
