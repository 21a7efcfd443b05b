"""A short fine-tuning run of a small encoder with a head."""

import runpy
from pathlib import Path

import ml_collections

LEARNABLE = {
    "spans": {
        "task": "squad_spans",
        "path": "",
        "max_positions": 32,
        "stride": 8,
        "max_question_tokens": 8,
        "max_answer_tokens": 2,
    },
    "choices": {"task": "quality", "path": ""},
}
MICRO = Path(__file__).parents[1] / "micro_config.py"


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration; `variant` is a data set or a kind of head, then a comma and a model."""
    dataset, _, model = variant.partition(",")
    config = runpy.run_path(str(MICRO))["get_config"]()
    config.objectives.mixture = "masked_lm"
    config.model.name = model or "bigs"
    config.model.encoder.positions = 128
    config.model.encoder.ssm_state = 8
    config.model.encoder.attention_heads = 2
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = 0.0
    config.optimizer.schedule = "linear"
    config.train.num_steps = 0
    config.train.log_every_steps = 1
    config.train.loss_chunk = 32
    config.checkpoint.every_steps = 3
    config.checkpoint.keep = 100
    config.eval.task_rows = 16
    if dataset in LEARNABLE:
        config.model.dropout = 0.1
        config.model.head_dropout = 0.1
        config.checkpoint.every_steps = 40
        batch = {"length": 64, "rows": 8, "steps": 120}
        config.finetune.stages = {dataset: LEARNABLE[dataset] | batch}
        config.eval.tasks = {dataset: LEARNABLE[dataset]}
    elif dataset:
        task = {"task": "glue", "dataset": dataset, "path": ""}
        batch = {"length": 64, "rows": 4, "epochs": 3.0, "steps": 30, "pack": True}
        config.finetune.stages = {"glue": task | batch}
        config.eval.tasks = {"glue": task}
    return config
