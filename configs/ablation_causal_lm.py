"""Ablation: the Gated SSM under causal language modelling only, the paper's CLM baseline.

    python -m birdie_jax.train --config=configs/ablation_causal_lm.py --workdir=runs/ablation_causal_lm

Variants: a size, 1_4b (the default), 400m, 110m or tiny. Add `,paper` for the paper's batch of 520 rows on
20 GPUs, as in `1_4b,paper` (not tiny). All other settings come from the configuration of that size; its
docstring lists the data, the devices and the planned time.

Causal LM has no context. With model.bidirectional, the reversed half of the recurrent channels carries
nothing from token to token until you fine-tune the model. With --config.model.bidirectional=False, all
channels run forward.
"""

import ml_collections

from birdie_jax.presets import gated_ssm_of_size


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration; `variant` is a size, "paper" or both with a comma between."""
    config = gated_ssm_of_size(__file__, variant)
    config.objectives.mixture = "causal_lm"
    config.bandit.policy = "fixed"
    return config
