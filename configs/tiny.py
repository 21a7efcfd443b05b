"""A first run: a Gated SSM+ with 0.85M parameters learns to copy text that it has never seen.

    python -m birdie_jax.train --config=configs/tiny.py --workdir=runs/tiny

Variants: a model name, as in `--config=configs/tiny.py:gated_ssm`.

The text is Python's standard library. The model learns to copy within minutes because most of the loss is
on copying short texts, and because the tokenizer has few pieces
(docs/measurements/retrieval_procedures.md). It learns little else.
`--config.objectives.mixture=causal_lm` trains the same model on text only.
docs/measurements/quickstart_and_ci.md has the time and the results of both.
"""

import ml_collections

from birdie_jax.config import default_config
from birdie_jax.presets import choose_model


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration; `variant` is a model name, or empty for gated_ssm_plus."""
    config = default_config()
    config.data.vocab_size = 512
    config.data.record_tokens = 4096
    config.data.validation_fraction = 0.03

    config.objectives.mixture = "quickstart"
    config.batching.rows = 8
    config.batching.length = 256

    config.model.name = choose_model(variant)
    config.model.layers = 2
    config.model.features = 128
    config.model.state = 512
    config.model.mlp_features = 128
    config.model.hawk.heads = 4
    config.model.attention.heads = 4
    config.model.gated_deltanet.heads = 4
    config.model.mamba2.state_size = 32
    # About as many parameters as gated_ssm_plus has.
    if config.model.name == "gated_deltanet":
        config.model.mlp_features = 288
    if config.model.name == "mamba2":
        config.model.state = 896
    if config.model.name == "griffin":
        # One layer for each entry of the pattern; attention is local, with one head of keys and values.
        config.model.layers = 3
        config.model.attention.update(kv_heads=1, window=128)
    config.model.dtype = "float32"
    config.model.remat = "none"

    # The bandit's settings for this size, with `--config.bandit.policy=birdie`. With fixed shares, the
    # model learns to copy sooner.
    config.bandit.every_steps = 100
    config.bandit.critic_features = 32
    config.bandit.critic_state = 64
    config.bandit.candidates = 512

    config.optimizer.learning_rate = 1e-2
    config.optimizer.warmup_steps = 50
    config.train.num_steps = 1800
    config.train.loss_chunk = 64
    config.checkpoint.every_steps = 200
    config.eval.batches_per_arm = 2
    config.eval.rows = 4
    return config
