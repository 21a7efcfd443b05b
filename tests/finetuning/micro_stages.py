"""A short fine-tuning run: recorded examples in short rows, then generated ones in longer rows."""

import runpy
from pathlib import Path

import ml_collections

from tests.finetuning import toy_tasks  # noqa: F401 - registers the tasks

MICRO = Path(__file__).parents[1] / "micro_config.py"


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration of a run that starts from a workdir of `tests/trained_workdirs.py`."""
    del variant
    config = runpy.run_path(str(MICRO))["get_config"]()
    config.model.dropout = 0.2
    config.optimizer.weight_decay = 0.0
    config.train.num_steps = 0
    config.train.log_every_steps = 1
    config.train.loss_chunk = 32
    config.checkpoint.every_steps = 2
    config.checkpoint.keep = 100
    # The stages run in the sorted order of their names.
    config.finetune.stages = {
        "2_words": {"task": "toy_words", "length": 96, "rows": 4, "steps": 5},
        "1_backward": {"task": "toy_backward_words", "length": 64, "rows": 4, "epochs": 1.5},
    }
    return config
