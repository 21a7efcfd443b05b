"""400M-parameter models with the 1.4B recipe in a quarter of its steps: 8.4B tokens, 21 per parameter.

    python -m birdie_jax.prepare_data --input='pile/**/*.jsonl.zst' --output=data/pile --vocab_size=32000
    python -m birdie_jax.train --config=configs/birdie_400m.py --workdir=runs/birdie_400m

Variants: gated_ssm_plus (the default), gated_ssm, gated_ssm_mlp, griffin, hawk, hawk_mlp, birdie_ssm,
mamba, mamba2, gated_deltanet, transformer. All are within 1.5 % of 400M parameters; the dimensions
are this project's choice. A batch has 512 rows and runs on any power of two of devices up to 512. Add
`,paper` to a variant for batches of 520 rows, for 20 GPUs.

Planned, not run (docs/launch_presets.md): on v5e-256, each chip needs 9.3 of 15.8 GiB. The 8,000 steps take
7 minutes if everything overlaps, and 12 in the order of the program.
"""

import ml_collections

from birdie_jax.config import default_config
from birdie_jax.presets import PAPER, choose_model, set_batch, split_paper

_DIMENSIONS = {
    "gated_ssm_plus": {"layers": 24, "state": 1280, "mlp_features": 2816},
    "gated_ssm_mlp": {"layers": 24, "state": 1280, "mlp_features": 2816},
    "gated_ssm": {"layers": 28, "state": 2560},
    "griffin": {
        "layers": 24,
        "state": 1280,
        "mlp_features": 3840,
        "hawk": {"heads": 20},
        "attention": {"heads": 16, "kv_heads": 1, "window": 1024},
    },
    "hawk": {"layers": 43, "state": 2560, "hawk": {"heads": 20}},
    "hawk_mlp": {"layers": 27, "state": 1280, "mlp_features": 3072, "hawk": {"heads": 20}},
    "birdie_ssm": {"layers": 47, "state": 2560},
    "mamba": {"layers": 55, "state": 2048},
    "mamba2": {"layers": 56, "state": 2048},
    "gated_deltanet": {"layers": 23, "state": 1536, "mlp_features": 3072, "gated_deltanet": {"heads": 6}},
    "transformer": {"layers": 24, "mlp_features": 3584, "attention": {"heads": 16}},
}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration; `variant` is a model name, "paper" or both with a comma between."""
    variant, paper = split_paper(variant)
    config = default_config()
    config.data.prepared = "data/pile"
    config.data.vocab_size = 32_000

    config.objectives.mixture = "birdie"
    set_batch(config, paper)
    # The same number of decisions per token as with half the rows and 512 steps.
    config.bandit.policy = "birdie"
    config.bandit.every_steps = 256

    config.model.name = choose_model(variant, PAPER)
    config.model.features = 1024
    config.model.update(_DIMENSIONS[config.model.name])
    config.model.tie_embeddings = True
    config.model.dtype = "bfloat16"
    config.model.remat = "auto"

    # Mamba's recipe for this size (its appendix E.2): warm-up (here a tenth of the run), cosine to 1e-5.
    config.optimizer.learning_rate = 1.5e-3
    config.optimizer.final_learning_rate = 1e-5
    config.optimizer.warmup_steps = 800
    config.train.num_steps = 8_000
    return config
