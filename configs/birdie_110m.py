"""110M-parameter models: the size that the Birdie paper used to choose its mixtures (appendix A.3).

    python -m birdie_jax.prepare_data --input='pile/**/*.jsonl.zst' --output=data/pile --vocab_size=32000
    python -m birdie_jax.train --config=configs/birdie_110m.py --workdir=runs/birdie_110m

Variants: gated_ssm_plus (the default), gated_ssm, gated_ssm_mlp, griffin, hawk, hawk_mlp, birdie_ssm,
mamba, mamba2, gated_deltanet, transformer. All are within 1.5 % of 110M parameters. A batch has
512 rows and runs on any power of two of devices up to 512. Add `,paper` to a variant for batches of 520
rows, for 20 GPUs.

The paper states only the size of these runs, and that each took "roughly 5 hours". The dimensions and the
8,000 steps (8.4B tokens, 76 per parameter) are this project's choice. The learning rate is Mamba's for 125M
parameters.

Planned, not run (docs/launch_presets.md): on 8 H200, each GPU needs 34.6 of 131 GiB. The 8,000 steps take
26 minutes if everything overlaps, and 32 in the order of the program.
"""

import ml_collections

from birdie_jax.config import default_config
from birdie_jax.presets import PAPER, choose_model, set_batch, split_paper

_DIMENSIONS = {
    "gated_ssm_plus": {"layers": 12, "state": 768, "mlp_features": 1792},
    "gated_ssm_mlp": {"layers": 12, "state": 768, "mlp_features": 1792},
    "gated_ssm": {"layers": 22, "state": 1024},
    "griffin": {
        "layers": 12,
        "state": 768,
        "mlp_features": 2304,
        "hawk": {"heads": 12},
        "attention": {"heads": 12, "kv_heads": 1, "window": 1024},
    },
    "hawk": {"layers": 34, "state": 1024, "hawk": {"heads": 16}},
    "hawk_mlp": {"layers": 12, "state": 1024, "mlp_features": 2048, "hawk": {"heads": 16}},
    "birdie_ssm": {"layers": 24, "state": 1536},
    "mamba": {"layers": 23, "state": 1536},
    "mamba2": {"layers": 23, "state": 1536},
    "gated_deltanet": {"layers": 9, "state": 1536, "mlp_features": 2048, "gated_deltanet": {"heads": 6}},
    "transformer": {"layers": 12, "mlp_features": 2048, "attention": {"heads": 12}},
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
    config.model.features = 768
    config.model.update(_DIMENSIONS[config.model.name])
    config.model.tie_embeddings = True
    config.model.dtype = "bfloat16"
    config.model.remat = "auto"

    # Mamba's recipe for this size (its appendix E.2): warm-up (here a tenth of the run), cosine to 1e-5.
    config.optimizer.learning_rate = 3e-3
    config.optimizer.final_learning_rate = 1e-5
    config.optimizer.warmup_steps = 800
    config.train.num_steps = 8_000
    return config
