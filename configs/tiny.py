"""A first run: a 1.1M-parameter Gated SSM+ learns the Python standard library under the Birdie procedure.

    python -m birdie_jax.train --config=configs/tiny.py --workdir=runs/tiny

Variants: a model name, as in `--config=configs/tiny.py:gated_ssm`.

Measured: from an empty machine to the report in 4 min 8 s on two CPU cores (`time bash
launch/quickstart.sh`). The text is Python's standard library.
"""

import ml_collections

from birdie_jax.config import default_config
from birdie_jax.presets import choose_model


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration; `variant` is a model name, or empty for gated_ssm_plus."""
    config = default_config()
    config.data.vocab_size = 2048
    config.data.record_tokens = 4096
    config.data.validation_fraction = 0.03

    config.objectives.mixture = "tiny"
    config.batching.rows = 8
    config.batching.length = 256

    config.model.name = choose_model(variant)
    config.model.layers = 3
    config.model.features = 128
    config.model.state = 256
    config.model.mlp_features = 256
    config.model.hawk.heads = 4
    config.model.attention.heads = 4
    if config.model.name == "griffin":
        # Local, and with one head of keys and values, as in its paper.
        config.model.attention.update(kv_heads=1, window=128)
    config.model.dtype = "float32"
    config.model.remat = "none"

    config.bandit.policy = "birdie"
    config.bandit.every_steps = 50
    config.bandit.critic_features = 32
    config.bandit.critic_state = 64
    config.bandit.candidates = 512

    config.optimizer.learning_rate = 4e-3
    config.optimizer.warmup_steps = 50
    config.train.num_steps = 800
    config.train.loss_chunk = 64
    config.checkpoint.every_steps = 100
    config.eval.batches_per_arm = 1
    config.eval.rows = 4
    return config
