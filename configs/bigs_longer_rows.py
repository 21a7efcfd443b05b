r"""Longer rows for the encoders of configs/bigs.py: from 128 tokens to 512, or to 4,096.

    python -m launch.local --processes=1 --gpus=8 -- \
        python -m birdie_jax.train --config=configs/bigs_longer_rows.py \
        --config.init.from=runs/bigs_97b --workdir=runs/bigs_512
    python -m birdie_jax.prepare_data --input='long_documents/**/*.jsonl.zst' \
        --output=data/long_documents --tokenizer=data/wikipedia_and_books/tokenizer.model
    python -m launch.local --processes=1 --gpus=8 -- \
        python -m birdie_jax.train --config=configs/bigs_longer_rows.py:4096 \
        --config.init.from=runs/bigs_119m --workdir=runs/bigs_4096

Variants: 512 (the default), for a model of BERT-large's size on the same text; and 4096, for the 119M model
on longer documents. The name of the model follows a comma unless it is bigs. `init.from` repeats the table
of positions, so the first step begins with the trained model. The state-space layers do not change: their
kernel is as long as the rows. Above 384 tokens, they are computed in chunks.

The paper's values (appendix A.1): 10,000 steps of 104 rows with a learning rate of 4e-5 for 512 tokens, and
3e-5 for 4,096. The paper reports no schedule; here it is a cosine to a tenth with 1 % of warm-up, as in
pre-training. The paper does not report the batch for 4,096 tokens; here it is 64 rows, as Longformer's. The
other settings match configs/bigs.py. 8, 4 or 2 devices divide the batch.

The paper reports for SQuAD 1.1 with 512 tokens F1 89.5 (bigs) and 87.3 (stack_attention) on the development
set. With 4,096 tokens, it reports QuALITY 32.8 and ContractNLI 71.4 on SCROLLS's test sets; with the same
model at 128 tokens, 32.3 and 68.7. configs/finetune_reading.py measures the development sets.

Planned, not run (docs/measurements/bigs.md): on 8 chips of v5e, a step of 512 needs 9.3 of 15.75 GiB per
chip. It takes 70 ms if everything overlaps and 154 ms if nothing does: 12 to 26 minutes. A step of 4096, in
four parts, needs 4.3 GiB and takes 106 or 233 ms: 18 to 39 minutes.
"""

import runpy
from pathlib import Path

import ml_collections

from birdie_jax.presets import choose_variant

# The size in configs/bigs.py, the rows of a batch, and the learning rate.
_LENGTHS = {"512": ("97b", 104, 4e-5), "4096": ("119m", 64, 3e-5)}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration; `variant` is a length, or a length and a model with a comma between."""
    length, _, model = variant.partition(",")
    length = choose_variant(length, tuple(_LENGTHS))
    size, rows, rate = _LENGTHS[length]
    preset = Path(__file__).with_name("bigs.py")
    config = runpy.run_path(str(preset))["get_config"](f"{size},{model}")

    if length == "4096":
        config.data.prepared = "data/long_documents"
    config.batching.rows = rows
    config.batching.length = int(length)
    config.model.encoder.positions = int(length)
    config.optimizer.learning_rate = rate
    config.optimizer.final_learning_rate = rate / 10 if config.optimizer.schedule == "cosine" else 0.0
    config.optimizer.warmup_steps = 100
    config.train.num_steps = 10_000
    config.train.loss_chunk = 512
    config.bandit.every_steps = 1_000
    config.eval.rows = 16
    return config
