"""Ablation: the Gated SSM under the Birdie procedure, with a causal context.

    python -m birdie_jax.train --config=configs/ablation_birdie_causal.py --workdir=runs/birdie_causal

Variants: a size, 1_4b (the default), 400m, 110m or tiny. Add `,paper` for the paper's batch of 520 rows on
20 GPUs, as in `1_4b,paper` (not tiny). All other settings come from the configuration of that size; its
docstring lists the data, the devices and the planned time.

All recurrent state runs forward. Parameters and computation equal ablation_birdie.py's.
"""

import ml_collections

from birdie_jax.presets import gated_ssm_of_size


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration; `variant` is a size, "paper" or both with a comma between."""
    config = gated_ssm_of_size(__file__, variant)
    config.objectives.mixture = "birdie"
    config.bandit.policy = "birdie"
    config.model.bidirectional = False
    return config
