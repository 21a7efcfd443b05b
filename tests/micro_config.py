"""A short run: a micro model on a few documents, for tests of whole runs."""

import ml_collections

from birdie_jax.config import default_config


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration; `variant` is a bandit policy; empty: birdie."""
    config = default_config()
    config.data.vocab_size = 300
    config.data.record_tokens = 512
    config.data.validation_fraction = 0.3
    config.objectives.mixture = "tiny"
    config.batching.rows = 2
    config.batching.length = 128
    config.batching.prefetch = 2
    config.model.layers = 1
    config.model.features = 16
    config.model.state = 16
    config.model.mlp_features = 16
    config.model.dtype = "float32"
    config.model.remat = "none"
    config.bandit.policy = variant or "birdie"
    config.bandit.every_steps = 5
    config.bandit.critic_layers = 1
    config.bandit.critic_features = 8
    config.bandit.critic_state = 8
    config.bandit.critic_updates = 3
    config.bandit.candidates = 16
    config.bandit.average_best = 2
    config.optimizer.learning_rate = 1e-2
    config.optimizer.warmup_steps = 2
    config.train.num_steps = 24
    config.train.log_every_steps = 2
    config.train.loss_chunk = 64
    config.checkpoint.every_steps = 4
    config.eval.batches_per_arm = 1
    config.eval.rows = 1
    return config
