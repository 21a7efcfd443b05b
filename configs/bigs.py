r"""Pre-training as in "Pretraining Without Attention": masked LM on 11B, 29B or 97B tokens.

    python -m birdie_jax.prepare_data --input='wikipedia_and_books/**/*.jsonl.zst' \
        --output=data/wikipedia_and_books --vocab_size=30266
    python -m launch.local --processes=1 --gpus=8 -- \
        python -m birdie_jax.train --config=configs/bigs.py --workdir=runs/bigs_11b
    python -m launch.local --processes=1 --gpus=8 -- \
        python -m birdie_jax.train --config=configs/bigs.py:97b --workdir=runs/bigs_97b

Variants: 11b (the default), 29b and 97b tokens for models of BERT-large's size; and 119m, the smaller model
that the paper compares with Longformer, for 500,000 steps. The name of the model follows a comma unless it
is bigs, as in `11b,stack_attention`. Gated models have 23 layers (119m: 12), stacked ones 24 (119m: 13).

Table 1 of the paper reports these means over GLUE's development sets after fine-tuning: at 11B tokens bigs
83.3, stack_attention 83.3, gated_attention 81.8, stack_ssm 77.2; at 29B 84.8, 84.8, 82.9 and 79.8; bigs at
97B 85.8. The paper does not report the pre-training loss as a number.

The settings are one configuration of each grid in table 5: AdamW with betas 0.9 and 0.98, epsilon 1e-6 and
no clipping. stack_attention has a peak rate of 4e-4, linear decay to 0, weight decay 0.01 and 2 % of
warm-up. The others have 6e-4, a cosine, 0.05 and 1 %. The cosine ends at a tenth of the peak, as in the
published command. Batches have 840 rows for 11B tokens, as BERT's, and 760 otherwise, the same for every
cell. The number of steps follows from the tokens. The paper does not report the batch of the 119m model; it
is 760 here. 8, 4 or 2 devices divide every batch.

Differences from the paper: rows are packed, each reading of a text hides other tokens, pieces come from
SentencePiece (30,266 and 256 special ones, as many as BERT's), and activations are bfloat16. The weights of
attention have no dropout.

Planned, not run (docs/measurements/bigs.md): on 8 chips of v5e, a step of 11b needs 12.8 of 15.75 GiB per
chip. It takes 134 ms if everything overlaps and 239 ms if nothing does: 3.7 to 6.6 hours. At the same
tokens per second, 29b takes 10 to 18 hours and 97b 34 to 60. A step of 119m needs 4.6 GiB and takes 37 or
75 ms: 5.1 to 10.4 hours.
"""

import ml_collections

from birdie_jax.config import default_config
from birdie_jax.models.registry import encoder_names
from birdie_jax.presets import choose_variant

# The rows of a batch, and the steps.
_LENGTHS = {"11b": (840, 100_000), "29b": (760, 300_000), "97b": (760, 1_000_000), "119m": (760, 500_000)}
_STACKED = ("stack_attention", "stack_ssm")


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration; `variant` is a size, or a size and a model with a comma between."""
    size, _, model = variant.partition(",")
    size = choose_variant(size, tuple(_LENGTHS))
    name = choose_variant(model, encoder_names())
    rows, steps = _LENGTHS[size]
    small, stacked = size == "119m", name in _STACKED
    features = 768 if small else 1024

    config = default_config()
    config.data.prepared = "data/wikipedia_and_books"
    config.data.vocab_size = 30_266
    config.objectives.mixture = "masked_lm"
    config.batching.rows = rows
    config.batching.length = 128

    config.model.name = name
    config.model.layers = (12 if small else 23) + stacked
    config.model.features = features
    config.model.mlp_features = (4 if stacked else 3) * features
    config.model.norm_epsilon = 1e-12
    config.model.encoder.positions = 128
    config.model.encoder.attention_heads = features // 64
    config.model.encoder.embedding_dropout = 0.1
    config.model.dtype = "bfloat16"
    config.model.remat = "auto"

    # There is only one arm, so the policy decides nothing. The arm is measured every `every_steps`.
    config.bandit.policy = "fixed"
    config.bandit.every_steps = 5_000

    is_bert = name == "stack_attention"
    config.model.dropout = 0.1 if is_bert else 0.0
    config.optimizer.schedule = "linear" if is_bert else "cosine"
    config.optimizer.learning_rate = 4e-4 if is_bert else 6e-4
    config.optimizer.final_learning_rate = 0.0 if is_bert else 6e-5
    config.optimizer.weight_decay = 0.01 if is_bert else 0.05
    config.optimizer.warmup_steps = steps // (50 if is_bert else 100)
    config.optimizer.beta2 = 0.98
    config.optimizer.epsilon = 1e-6
    config.optimizer.clip_norm = 0.0
    config.train.num_steps = steps
    config.train.accumulation_steps = 0
    config.train.log_every_steps = 100
    config.train.loss_chunk = 128
    config.checkpoint.every_steps = 1_000
    config.eval.rows = 64
    return config
