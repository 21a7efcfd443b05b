"""The paper's 1.4B models (Birdie, EMNLP 2024, appendix A.1): 34B tokens under the Birdie procedure.

    python -m birdie_jax.prepare_data --input='pile/**/*.jsonl.zst' --output=data/pile --vocab_size=32000
    python -m birdie_jax.train --config=configs/birdie_1_4b.py --workdir=runs/birdie_1_4b

Variants: gated_ssm_plus (the default), gated_ssm, gated_ssm_mlp, griffin, hawk, hawk_mlp, birdie_ssm,
mamba, mamba2, gated_deltanet, transformer. All are within 1.5 % of 1.4B parameters. The paper states
only the size. The dimensions are this project's choice, except griffin's, which are those of its own paper
(De et al. 2024, table 2, 1B). Add `,paper` to a variant for the paper's batch of 520 rows on 20 GPUs:

    python -m birdie_jax.train --config=configs/birdie_1_4b.py:gated_ssm,paper --workdir=runs/paper

Otherwise a batch has 512 rows. The train command above runs unchanged on any power of two of devices, up to
512, if they have the memory. The run chooses mesh and accumulation from the kind and number of devices, and
prints the rule. Planned, not run, for gated_ssm_plus (docs/launch_presets.md): memory per device, and hours
for all 32,000 steps if everything overlaps and in the order of the program.

    v5p-128, 64 chips     data=64             44.3 of 95.7 GiB     2.7 to 3.4 hours
    v4-128, 64 chips      data=16, fsdp=4     26.9 of 30.8 GiB     4.6 to 5.6 hours
    v5e-256, 256 chips    data=16, fsdp=16     6.8 of 15.8 GiB     1.6 to 2.1 hours
    64 H200 on 8 hosts    data=64             44.1 of 131 GiB      1.3 to 2.3 hours

The paper measured 13,148 (Gated SSM+) to 15,214 (Gated SSM) tokens per second on each of 20 A100s of 80 GB
(its Table 4). That is 36 and 31 hours. The GPU hours in the same table are nine times as many.
"""

import ml_collections

from birdie_jax.config import default_config
from birdie_jax.presets import PAPER, choose_model, set_batch, split_paper

_DIMENSIONS = {
    "gated_ssm_plus": {"layers": 24, "state": 2560, "mlp_features": 4864},
    "gated_ssm_mlp": {"layers": 24, "state": 2560, "mlp_features": 4864},
    "gated_ssm": {"layers": 32, "state": 4096},
    "griffin": {
        "layers": 26,
        "state": 2560,
        "mlp_features": 6144,
        "hawk": {"heads": 20},
        "attention": {"heads": 16, "kv_heads": 1, "window": 1024},
    },
    "hawk": {"layers": 51, "state": 4096, "hawk": {"heads": 32}},
    "hawk_mlp": {"layers": 24, "state": 2560, "mlp_features": 6400, "hawk": {"heads": 20}},
    "birdie_ssm": {"layers": 53, "state": 4096},
    "mamba": {"layers": 50, "state": 4096},
    "mamba2": {"layers": 52, "state": 4096},
    "gated_deltanet": {"layers": 22, "state": 3072, "mlp_features": 5632, "gated_deltanet": {"heads": 6}},
    "transformer": {"layers": 24, "mlp_features": 6400, "attention": {"heads": 16}},
}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration; `variant` is a model name, "paper" or both with a comma between."""
    variant, paper = split_paper(variant)
    config = default_config()
    config.data.prepared = "data/pile"
    config.data.vocab_size = 32_000

    config.objectives.mixture = "birdie"
    config.bandit.policy = "birdie"
    set_batch(config, paper)

    config.model.name = choose_model(variant, PAPER)
    config.model.features = 2048
    config.model.update(_DIMENSIONS[config.model.name])
    config.model.tie_embeddings = True
    config.model.dtype = "bfloat16"
    config.model.remat = "auto"

    # Mamba's recipe for this size (its appendix E.2): warm-up (here a tenth of the run), cosine to 1e-5.
    config.optimizer.learning_rate = 1e-3
    config.optimizer.final_learning_rate = 1e-5
    config.optimizer.warmup_steps = 3200
    config.train.num_steps = 32_000
    return config
