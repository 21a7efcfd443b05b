"""A small model for tests of tasks, with a lossless tokenizer."""

from functools import cache

import jax
import jax.numpy as jnp

from birdie_jax.models import build_model
from birdie_jax.objectives import Arm, make_objective
from birdie_jax.tasks import TaskModel
from tests.trained_workdirs import micro_config, random_params, small_tokenizer


@cache
def tiny_model_parts():
    """Return model, parameters and tokenizer."""
    config, tokenizer = micro_config(), small_tokenizer()
    model = build_model(config.model, tokenizer.vocab_size)
    params = jax.tree.map(jnp.asarray, random_params(config, tokenizer.vocab_size, 1))
    return model, params, tokenizer


@cache
def tiny_task_model(**options) -> TaskModel:
    """Return the model. Equal options return the same object, so its programs compile once."""
    arm = Arm("prefix_lm", make_objective("prefix_lm"), group="prefix_lm")
    return TaskModel(*tiny_model_parts(), arm, **options)
