r"""Instruction tuning in stages of increasing length (Birdie paper, appendix A.2).

    python -m launch.local --processes=8 --gpus=8 -- python -m birdie_jax.train \
        --config=configs/instruction_tuning.py --workdir=runs/instructions \
        --config.init.from=runs/birdie_1_4b --config.finetune.stages.1_short.path=data/short.jsonl \
        --config.finetune.stages.2_flan.path=data/flan.jsonl \
        --config.finetune.stages.3_long.path=data/long.jsonl

Variants: 1_4b (the default), 400m, 110m, tiny; each starts from a gated_ssm_plus of that size. A record of
a file is {"prompt": text, "response": text} or {"messages": [...]}; docs/fine_tune.md describes the format.

The paper follows Orca 2 in fine-tuning on one data set after another, and FLAN, Zephyr and Tulu in dropout,
a cosine and no weight decay: 4 epochs, a peak of 3e-4, and for FLAN rows of 4,096 tokens, 20 per batch. It
does not state the dropout rate, which is 0.05 here, or the lengths of the other stages. Here they are
2,048, as in pre-training, and 8,192, with the same number of positions per batch. FLAN has 16 rows instead
of 20, because 8 devices divide 16. `--config.finetune.stages.2_flan.rows=20` sets the paper's number.
"""

import runpy
from pathlib import Path

import ml_collections

from birdie_jax.presets import SIZES, choose_variant


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration; `variant` is a size of model, or empty for 1_4b."""
    size = choose_variant(variant, tuple(SIZES))
    config = runpy.run_path(str(Path(__file__).with_name(SIZES[size])))["get_config"]()
    # This is a setting of pre-training; fine-tuning does not read it.
    config.data.prepared = ""
    scale = 16 if size == "tiny" else 1
    config.finetune.stages = {
        name: {
            "task": "instructions",
            "path": f"data/{name.partition('_')[2]}.jsonl",
            "template": "",
            "turns": "all",
            "skip_bad_records": False,
            "length": length // scale,
            "rows": rows,
            "epochs": 4.0,
            "skip_long": False,
        }
        for name, length, rows in (("1_short", 2048, 32), ("2_flan", 4096, 16), ("3_long", 8192, 8))
    }
    config.model.dropout = 0.05
    config.optimizer.learning_rate = 3e-4
    config.optimizer.final_learning_rate = 0.0
    config.optimizer.weight_decay = 0.0
    config.optimizer.warmup_steps = 100
    # 0: all steps of the stages.
    config.train.num_steps = 0
    config.train.accumulation_steps = 0
    config.checkpoint.every_steps = 200
    return config
