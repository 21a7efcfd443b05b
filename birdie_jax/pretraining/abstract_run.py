"""The train step of a run whose text and devices need not be there, for planning."""

from functools import partial

from jax.sharding import Mesh

from birdie_jax.config import Config
from birdie_jax.engine import ShardedStep
from birdie_jax.pretraining.arm_validation import SECTION
from birdie_jax.pretraining.configured_bandit import create_bandit
from birdie_jax.pretraining.language_model_step import make_language_model_step
from birdie_jax.pretraining.mixture import configured_mixture


def abstract_step(config: Config, vocab_size: int, mesh: Mesh) -> ShardedStep:
    """Return the train step of a run of `config`, the bandit's section of its state included."""
    mixture = configured_mixture(config)
    sections = {SECTION: partial(create_bandit, config, mixture)}
    return make_language_model_step(config, vocab_size, mixture, mesh, sections)
