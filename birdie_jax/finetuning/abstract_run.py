"""The train step of a stage whose examples and devices need not be there, for planning."""

from jax.sharding import Mesh

from birdie_jax.config import Config
from birdie_jax.engine import ShardedStep
from birdie_jax.finetuning.pruned_step import make_pruned_step
from birdie_jax.finetuning.staged_step import make_head_step
from birdie_jax.finetuning.stages import Stage, read_stages, stage_arms, stage_config
from birdie_jax.finetuning.task_heads import max_samples, with_task_head
from birdie_jax.objectives import Mixture
from birdie_jax.pretraining.language_model_step import make_language_model_step


def largest_stage(config: Config) -> Stage:
    """Return the stage with the most positions a batch; of several, the one with the longest rows.

    Raises:
        ConfigError: a stage cannot be; see `read_stages`.
    """
    return max(read_stages(config), key=lambda stage: (stage.rows * stage.length, stage.length))


def config_to_plan(config: Config, stage: Stage) -> Config:
    """Return the configuration of a run of one stage; how many steps its epochs take is not known yet.

    Raises:
        ConfigError: the stages of the run cannot have one head.
    """
    config = with_task_head(config, read_stages(config))
    return stage_config(config, stage, max(config.train.num_steps, 1))


def abstract_stage_step(config: Config, vocab_size: int, mesh: Mesh) -> ShardedStep:
    """Return the train step of the stage that `config` was made for by `config_to_plan`."""
    stages = read_stages(config)
    if config.model.head:
        room = max_samples(config, largest_stage(config))
        return make_head_step(
            config, vocab_size, mesh, {}, num_stages=len(stages), max_samples=room, summarise=lambda _: {}
        )
    if config.finetune.pruning.max_pruned:
        return make_pruned_step(
            config, vocab_size, mesh, {}, num_stages=len(stages), summarise=lambda _: {}
        )
    return make_language_model_step(config, vocab_size, Mixture(stage_arms(stages)), mesh, {})
