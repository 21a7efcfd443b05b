"""Ablation: the Gated SSM under UL2's seven denoisers (Tay et al. 2023) in equal parts.

    python -m birdie_jax.train --config=configs/ablation_ul2.py --workdir=runs/ablation_ul2

Variants: a size, 1_4b (the default), 400m, 110m or tiny. Add `,paper` for the paper's batch of 520 rows on
20 GPUs, as in `1_4b,paper` (not tiny). All other settings come from the configuration of that size; its
docstring lists the data, the devices and the planned time.

The model reads the context in both directions, as in the Birdie run that it is compared with.
"""

import ml_collections

from birdie_jax.presets import gated_ssm_of_size


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration; `variant` is a size, "paper" or both with a comma between."""
    config = gated_ssm_of_size(__file__, variant)
    config.objectives.mixture = "ul2"
    config.bandit.policy = "fixed"
    return config
