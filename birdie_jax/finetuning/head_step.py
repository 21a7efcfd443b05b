"""The train step of a model with a head of fine-tuning: the mean loss over the samples of a batch."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from birdie_jax.array_types import Key
from birdie_jax.config import Config
from birdie_jax.engine import LossFunction, ShardedStep, make_step
from birdie_jax.engine.mesh import state_sharding
from birdie_jax.engine.optimizer import make_optimizer
from birdie_jax.engine.sharded_step import Summarise
from birdie_jax.models import LanguageModel, build_model
from birdie_jax.models.parameters import one_token_batch, parameter_policies
from birdie_jax.models.sample_scores import sample_losses
from birdie_jax.pretraining.language_model_step import sums_by_arm


def make_head_step(
    config: Config,
    vocab_size: int,
    mesh: Mesh,
    sections: Mapping[str, Callable[[Key], Any]],
    *,
    num_stages: int,
    max_samples: int,
    summarise: Summarise,
) -> ShardedStep:
    """Return the train step of the batches of a stage.

    Args:
        config: the configuration of the run, with its head, and with the batches of the stage.
        vocab_size: the number of rows of the embedding table.
        mesh: the device mesh, whose devices need not be there as long as nothing is called.
        sections: what makes the sections of the hooks, by their names.
        num_stages: the number of stages, by which sums are told apart.
        max_samples: the largest number of samples of a row.
        summarise: what is logged of the sums, which are `ArmSums` with samples in the place of tokens.
    """
    model = build_model(config.model, vocab_size)
    policies = parameter_policies(model)
    return make_step(
        lambda key: model.init(key, one_token_batch())["params"],
        head_loss(model, num_stages, max_samples),
        make_optimizer(config.optimizer, config.train.num_steps, policies),
        mesh,
        seed=config.seed,
        sections=sections,
        summarise=summarise,
        accumulation_steps=config.train.accumulation_steps,
        param_shardings=partial(state_sharding, mesh, policies=policies),
    )


def head_loss(model: LanguageModel, num_stages: int, max_samples: int) -> LossFunction:
    """Return the mean loss over all samples of a batch, with sums by stage.

    Args:
        model: a model with a head.
        num_stages: the number of stages.
        max_samples: the largest number of samples of a row; one with more makes the loss NaN.
    """

    def sums(params, batch, row_keys=None):
        found, given, arm_ids = sample_losses(model, max_samples, params, batch, row_keys)
        by_stage = sums_by_arm(found.losses, found.correct > 0, given, arm_ids, num_stages)
        return jnp.sum(by_stage.loss), by_stage._asdict()

    def tokens(batch):
        return jnp.sum(batch.segment_ids > 0).astype(jnp.float32)

    return LossFunction(sums, lambda batch: jnp.sum(batch.loss_mask), tokens, takes_row_keys=model.drops)
