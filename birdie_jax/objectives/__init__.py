"""Objectives. An objective turns text tokens into an example: a context to read and a target to write."""

# Importing an objective registers it. To add an objective, add a file and import it here.
from birdie_jax.objectives import (
    causal_lm,
    copying,
    deshuffling,
    fill_in_the_middle,
    full_span_corruption,
    full_span_corruption_deshuffling,
    masked_lm,
    prefix_lm,
    selective_copying,
    span_corruption,
)
from birdie_jax.objectives.arms import Arm, Mixture, mixture_from_arms
from birdie_jax.objectives.example import NO_LABEL, Example
from birdie_jax.objectives.mixtures import MIXTURES, make_mixture
from birdie_jax.objectives.objective import Objective
from birdie_jax.objectives.registry import OBJECTIVES, make_objective, register_objective

__all__ = [
    "MIXTURES",
    "NO_LABEL",
    "OBJECTIVES",
    "Arm",
    "Example",
    "Mixture",
    "Objective",
    "causal_lm",
    "copying",
    "deshuffling",
    "fill_in_the_middle",
    "full_span_corruption",
    "full_span_corruption_deshuffling",
    "make_mixture",
    "make_objective",
    "masked_lm",
    "mixture_from_arms",
    "prefix_lm",
    "register_objective",
    "selective_copying",
    "span_corruption",
]
