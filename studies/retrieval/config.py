r"""The configuration of each command of the study; commands load this file by its path.

    python -m birdie_jax.train --workdir=WORKDIR --config.data.prepared=TEXT \
        --config=studies/retrieval/config.py:small,gated_ssm_plus,mixture,0

A variant is a scale, a model, a procedure and a seed. For fine-tuning, add a task (phonebook or extraction)
and a learning rate, as in `small,gated_ssm_plus,mixture,0,phonebook,0.001`. If stages end when learned,
also add the number of the fine-tuning and the number of the stage, both from 0.
"""

import ml_collections

from birdie_jax.errors import ConfigError
from studies.retrieval.curriculum import choose_stage
from studies.retrieval.fine_tuning import fine_tuning_config
from studies.retrieval.plans import Run
from studies.retrieval.pretraining import pretraining_config
from studies.retrieval.scales import SCALES


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return the configuration of a run. `variant` names the run and, for fine-tuning, the task."""
    parts = variant.split(",")
    if len(parts) not in (4, 6, 8):
        raise ConfigError(
            f"config variant {variant!r}: found {len(parts)} parts; allowed: SCALE,MODEL,PROCEDURE,SEED, "
            "for fine-tuning also TASK,LEARNING_RATE, and for a curriculum also NUMBER,STAGE"
        )
    if parts[0] not in SCALES:
        raise ConfigError(f"config variant {variant!r}: unknown scale; allowed: {', '.join(SCALES)}")
    run = Run(parts[0], parts[1], parts[2], int(parts[3]))
    if len(parts) == 4:
        return pretraining_config(run)
    config = fine_tuning_config(run, parts[4], float(parts[5]))
    if len(parts) == 8:
        choose_stage(config, run, int(parts[6]), int(parts[7]))
    return config
