"""The paper's 1.4B models (Birdie, EMNLP 2024, appendix A.1): 34B tokens under the Birdie procedure.

    python -m birdie_jax.prepare_data --input='pile/**/*.jsonl.zst' --output=data/pile --vocab_size=32000
    python -m birdie_jax.train --config=configs/birdie_1_4b.py --workdir=runs/birdie_1_4b

Variants: gated_ssm_plus (the default), gated_ssm, gated_ssm_mlp, hawk, hawk_mlp, birdie_ssm, transformer;
all within 1.5 % of 1.4B parameters. The paper gives the size, not the dimensions: these are ours.

Not run here. The time follows from Table 4 of the paper, whose JAX code made 13,148 (Gated SSM+) to 15,214
(Gated SSM) tokens a second on each of 20 A100s of 80 GB: 36 and 31 hours for the 32,000 steps, 720 and 622
GPU hours. (The same table's column of GPU hours has nine times that.)

Each step is cut into 2 parts of 260 rows, for 20 devices (13 rows each), 10, 5 or 4. With 8 devices use
--config.train.accumulation_steps=5.
"""

import ml_collections

from birdie_jax.config import default_config
from birdie_jax.presets import choose_model, set_batch, split_paper

_DIMENSIONS = {
    "gated_ssm_plus": {"layers": 24, "state": 2560, "mlp_features": 4864},
    "gated_ssm_mlp": {"layers": 24, "state": 2560, "mlp_features": 4864},
    "gated_ssm": {"layers": 32, "state": 4096},
    "hawk": {"layers": 51, "state": 4096, "hawk": {"heads": 32}},
    "hawk_mlp": {"layers": 24, "state": 2560, "mlp_features": 6400, "hawk": {"heads": 20}},
    "birdie_ssm": {"layers": 53, "state": 4096},
    "transformer": {"layers": 24, "mlp_features": 6400, "attention": {"heads": 16}},
}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration; `variant` is a model name, "paper" or both with a comma between."""
    variant, paper = split_paper(variant)
    config = default_config()
    config.data.prepared = "data/pile"
    config.data.vocab_size = 32_000

    config.objectives.mixture = "birdie"
    set_batch(config, paper)

    config.model.name = choose_model(variant)
    config.model.features = 2048
    config.model.update(_DIMENSIONS[config.model.name])
    config.model.tie_embeddings = True
    config.model.dtype = "bfloat16"
    config.model.remat = "full"

    # Mamba's recipe for this size (its appendix E.2): warm-up, here a tenth of the run, cosine to 1e-5.
    config.optimizer.learning_rate = 1e-3
    config.optimizer.final_learning_rate = 1e-5
    config.optimizer.warmup_steps = 3200
    config.train.num_steps = 32_000
    return config
