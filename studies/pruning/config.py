r"""The configuration of each command of the study; commands load this file by its path.

    python -m birdie_jax.train --workdir=WORKDIR --config.data.prepared=TEXT \
        --config=studies/pruning/config.py:small,mamba,0

A variant is a scale, a model and a seed. For fine-tuning, add its data, as in `small,mamba,0,text_pruned`.
The data are `text`, `text_pruned` (adds the loss of a pass that drops tokens), and `needles_none`,
`needles_first` and `needles_last`, named by the position of the query.
"""

import runpy
from typing import Any

import ml_collections

from birdie_jax.errors import ConfigError
from studies.pruning.plans import MODELS, SCALES, SMALLER, Run, Scale
from studies.verbs import REPOSITORY

TEXT, TEXT_PRUNED, NEEDLES = "text", "text_pruned", "needles"
NEEDLE_METRIC = "token_accuracy"
_PRESET = "configs/tiny.py"
_VALIDATIONS = 5
_VALIDATED = 100
_CHECKPOINTS = 10
_LOGGED = 50
_QUESTION_SEED = 1001


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration of a run. `variant` names the run and, for fine-tuning, its data."""
    parts = variant.split(",")
    if len(parts) not in (3, 4):
        raise ConfigError(
            f"config variant {variant!r}: found {len(parts)} parts; allowed: SCALE,MODEL,SEED, and for "
            "fine-tuning ,WHAT"
        )
    models = (*MODELS, *(f"{model}_{SMALLER}" for model in MODELS))
    for part, allowed in zip(parts[:2], (SCALES, models), strict=True):
        if part not in allowed:
            raise ConfigError(f"config variant {variant!r}: found {part!r}; allowed: {', '.join(allowed)}")
    scale = SCALES[parts[0]]
    config = _pretraining(scale, Run(parts[0], parts[1], int(parts[2])))
    if len(parts) == 3:
        return config
    if parts[3] not in tunings(scale):
        raise ConfigError(
            f"config variant {variant!r}: found {parts[3]!r}; allowed: {', '.join(tunings(scale))}"
        )
    return _fine_tuning(config, scale, parts[3])


def tunings(scale: Scale) -> tuple[str, ...]:
    """Return the names of the fine-tunings of a scale; each starts from the pre-trained model."""
    on_text = () if scale.text_tuning is None else (TEXT, TEXT_PRUNED)
    return (*on_text, *(f"{NEEDLES}_{query}" for query in scale.queries))


def needle_settings(scale: Scale, query: str, stage: int = -1) -> dict[str, Any]:
    """Return the settings of the task of items among noise, for the last stage or another one."""
    needles = scale.needles
    length, items = needles.stages[stage]
    return {
        "task": "noisy_recall",
        "query": query,
        "sequence_length": length,
        "items": items,
        "values": needles.values,
        "keys": needles.values,
        "noise": 2 * needles.values,
        "num_sequences": needles.questions,
        "seed": _QUESTION_SEED,
    }


def _pretraining(scale: Scale, run: Run) -> ml_collections.ConfigDict:
    """Return `configs/tiny.py` with causal language modelling only, at the sizes of the scale."""
    config = runpy.run_path(str(REPOSITORY / _PRESET))["get_config"](run.mixer)
    features = scale.smaller_features if run.is_smaller else scale.features
    steps = scale.steps
    config.seed = run.seed
    config.data.vocab_size = scale.pieces
    config.data.validation_fraction = scale.validation_fraction
    config.objectives.mixture = "causal_lm"
    config.batching.rows = scale.rows
    config.batching.length = scale.length
    config.model.bidirectional = False
    config.model.layers = scale.smaller_layers if run.is_smaller else scale.layers
    config.model.features = features
    config.model.mlp_features = 256
    config.model.state = 2 * features
    config.model.mamba.state_size = scale.states
    config.bandit.policy = "fixed"
    config.bandit.every_steps = max(1, steps // _VALIDATIONS)
    config.optimizer.learning_rate = scale.learning_rate
    config.optimizer.final_learning_rate = scale.learning_rate / 10
    config.optimizer.warmup_steps = max(1, steps // 20)
    config.train.num_steps = steps
    config.train.loss_chunk = min(config.train.loss_chunk, scale.length)
    config.train.log_every_steps = max(1, min(_LOGGED, steps // 2))
    config.checkpoint.every_steps = max(1, steps // _CHECKPOINTS)
    config.eval.rows = scale.rows
    return config


def _fine_tuning(config: ml_collections.ConfigDict, scale: Scale, what: str) -> ml_collections.ConfigDict:
    """Return a fine-tuning: warm-up over a tenth of the steps; on text then a cosine, as in the paper."""
    if what in (TEXT, TEXT_PRUNED):
        assert scale.text_tuning is not None
        plan = scale.text_tuning
        tasks = {what: {"task": "jsonl", "path": "continuations.jsonl", "skip_long": True}}
        config.finetune.pruning.max_pruned = plan.max_pruned if what == TEXT_PRUNED else 0.0
        config.optimizer.final_learning_rate = 0.0
    else:
        plan = scale.needle_tuning
        query, count = what.removeprefix(f"{NEEDLES}_"), len(scale.needles.stages)
        tasks = {f"{what}_{stage + 1}": needle_settings(scale, query, stage) for stage in range(count)}
        config.eval.tasks = {what: needle_settings(scale, query)}
        config.eval.tasks_every_steps = max(1, plan.steps // _VALIDATIONS)
        if scale.needles.learned:
            config.eval.stop_when = f"{what}/{NEEDLE_METRIC} >= {scale.needles.learned:g}"
            config.eval.tasks_every_steps = min(_VALIDATED, config.eval.tasks_every_steps)
        # The rate stays constant, because a model may learn the task late and suddenly.
        config.optimizer.final_learning_rate = plan.learning_rate
    stage = {"length": plan.length, "rows": plan.rows, "steps": plan.steps // len(tasks)}
    config.finetune.stages = {name: {**task, **stage} for name, task in tasks.items()}
    config.batching.rows = plan.rows
    config.batching.length = plan.length
    # 0 = all steps of the stages.
    config.train.num_steps = 0
    config.train.log_every_steps = max(1, min(_LOGGED, plan.steps // 2))
    config.optimizer.warmup_steps = max(1, plan.steps // 10)
    config.optimizer.learning_rate = plan.learning_rate
    config.optimizer.weight_decay = 0.0
    config.checkpoint.every_steps = max(1, plan.steps // 2)
    return config
