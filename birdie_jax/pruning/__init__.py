"""Pruning of a prompt's tokens from layer to layer (Simba), for every recurrence."""

from birdie_jax.pruning.policies import POLICIES, Policy, register_policy
from birdie_jax.pruning.pruned_encoding import encode_pruned
from birdie_jax.pruning.pruned_prefill import LayerTrace, PrunedLayer, pruned_hidden
from birdie_jax.pruning.settings import PruningSettings, finetune_settings, parse_pruning

__all__ = [
    "POLICIES",
    "LayerTrace",
    "Policy",
    "PrunedLayer",
    "PruningSettings",
    "encode_pruned",
    "finetune_settings",
    "parse_pruning",
    "pruned_hidden",
    "register_policy",
]
