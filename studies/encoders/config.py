r"""The configuration of each command of the study; commands load this file by its path.

    python -m birdie_jax.train --workdir=WORKDIR --config.data.prepared=TEXT \
        --config=studies/encoders/config.py:small_tuned,bigs,0

A variant is a scale, a model and a seed. For fine-tuning, add a task and a learning rate, as in
`small_tuned,bigs,0,follows,0.001`. A pilot training, such as
`small_tuned,bigs,pilot,0.002,0.057,0.02`, names the learning rate and the initial deviations of blocks and
of tables. Other trainings receive the pilot's choices as flags.
"""

import runpy
from dataclasses import replace
from typing import Any

import ml_collections

from birdie_jax.errors import ConfigError
from studies.encoders.plans import DECIDING, OTHERS, SCALES, InitialDeviations, Scale
from studies.encoders.tasks import TRANSFER_TASKS
from studies.verbs import REPOSITORY

CONFIG_FILE = "studies/encoders/config.py"
PILOT = "pilot"
_LENGTH = 128
_PRESET = "configs/bigs_tiny.py"
_CHECKPOINTS = 10
_LOGGED = 50


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration of a run. `variant` names the run and, for fine-tuning, the task."""
    parts = variant.split(",")
    is_pilot = PILOT in parts[2:3]
    if len(parts) not in ((6,) if is_pilot else (3, 5)):
        raise ConfigError(
            f"config variant {variant!r}: found {len(parts)} parts; allowed: SCALE,MODEL,SEED, for "
            "fine-tuning SCALE,MODEL,SEED,TASK,LEARNING_RATE, and for a pilot "
            "SCALE,MODEL,pilot,LEARNING_RATE,DEVIATION_OF_BLOCKS,DEVIATION_OF_TABLES"
        )
    for part, allowed in zip(parts[:2], (SCALES, (*DECIDING, *OTHERS)), strict=True):
        if part not in allowed:
            raise ConfigError(f"config variant {variant!r}: found {part!r}; allowed: {', '.join(allowed)}")
    if is_pilot:
        rate, *deviations = map(float, parts[3:])
        return _pilot(SCALES[parts[0]], parts[1], rate, InitialDeviations(*deviations))
    config = _pretraining(SCALES[parts[0]], parts[1], int(parts[2]))
    if len(parts) == 3:
        return config
    if parts[3] not in TRANSFER_TASKS:
        raise ConfigError(
            f"config variant {variant!r}: found {parts[3]!r}; allowed: {', '.join(TRANSFER_TASKS)}"
        )
    return _fine_tuning(config, SCALES[parts[0]], parts[3], float(parts[4]))


def _pretraining(scale: Scale, model: str, seed: int) -> ml_collections.ConfigDict:
    """Return `configs/bigs_tiny.py` at the sizes of the scale, with the paper's schedule and optimizer.

    A run gets the learning rate and the initial deviations from its pilot, as flags.
    """
    config = runpy.run_path(str(REPOSITORY / _PRESET))["get_config"](model)
    stacked = model.startswith("stack")
    config.seed = seed
    config.data.vocab_size = scale.pieces
    config.data.validation_fraction = scale.validation_fraction
    config.batching.rows = scale.rows
    config.batching.length = _LENGTH
    config.model.layers = scale.layers + stacked
    config.model.features = scale.features
    config.model.mlp_features = (4 if stacked else 3) * scale.features
    config.optimizer.warmup_steps = scale.warmup_steps
    config.train.num_steps = scale.steps
    config.train.log_every_steps = max(1, min(_LOGGED, scale.steps // 2))
    config.bandit.every_steps = max(1, scale.steps // _CHECKPOINTS)
    config.checkpoint.every_steps = max(1, scale.steps // _CHECKPOINTS)
    config.eval.rows = scale.rows
    return config


def _pilot(
    scale: Scale, model: str, learning_rate: float, deviations: InitialDeviations
) -> ml_collections.ConfigDict:
    """Return a short pre-training with as many warm-up steps as a run."""
    config = _pretraining(replace(scale, steps=scale.pilot.steps), model, scale.pilot.seed)
    config.model.encoder.kernel_deviation = deviations.kernels
    config.model.encoder.table_deviation = deviations.tables
    config.optimizer.learning_rate = learning_rate
    config.optimizer.final_learning_rate = learning_rate / 10
    config.optimizer.warmup_steps = scale.warmup_steps
    return config


def task_settings(task: str) -> dict[str, Any]:
    """Return the settings of a task, except the file of its samples."""
    found = TRANSFER_TASKS[task]
    return {
        "task": "labelled_text",
        "classes": found.classes,
        "head_name": task,
        "group_fields": found.groups,
        "max_positions": _LENGTH,
    }


def _fine_tuning(
    config: ml_collections.ConfigDict, scale: Scale, task: str, learning_rate: float
) -> ml_collections.ConfigDict:
    """Return the paper's fine-tuning: warm-up over a tenth of the steps, then linear decay to 0.

    Flags set the files of samples.
    """
    settings = task_settings(task)
    stage = {"length": _LENGTH, "rows": scale.tuning_rows, "epochs": scale.epochs, "steps": None}
    config.finetune.stages = {task: {**settings, **stage, "path": "samples.jsonl"}}
    config.batching.rows = scale.tuning_rows
    config.eval.tasks = {task: {**settings, "path": "samples.jsonl"}}
    # 0 = all steps of the stage.
    config.train.num_steps = 0
    # A tenth of the steps if a row holds two samples.
    updates = scale.epochs * scale.training_samples / (2 * scale.tuning_rows)
    config.optimizer.warmup_steps = max(1, int(updates / 10))
    config.optimizer.learning_rate = learning_rate
    config.optimizer.final_learning_rate = 0.0
    config.optimizer.schedule = "linear"
    config.optimizer.beta2 = 0.999
    config.optimizer.weight_decay = 0.01
    config.checkpoint.every_steps = 10_000
    return config
