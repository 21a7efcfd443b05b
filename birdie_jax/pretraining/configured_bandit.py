"""The bandit that a configuration asks for, and the mixture that it begins with."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float64

from birdie_jax.array_types import Key
from birdie_jax.bandit import BanditState, find_policy, init_bandit
from birdie_jax.batching import DecisionSchedule
from birdie_jax.config import Config
from birdie_jax.objectives import Mixture
from birdie_jax.pretraining.mixture import class_names


def create_bandit(config: Config, mixture: Mixture, key: Key) -> BanditState:
    """Return the bandit of a run before its first observation."""
    classes = class_names(mixture)
    groups = np.array([classes.index(group) for group in mixture.groups], np.int32)
    schedule = DecisionSchedule(config.bandit.every_steps, config.train.num_steps)
    return init_bandit(
        config.bandit, mixture.weights, groups, schedule.num_decisions, key, class_names=classes
    )


def first_mixture(config: Config, mixture: Mixture) -> Float64[np.ndarray, " arms"]:
    """Return the mixture of a run's first steps, as far as it is known before the run.

    That of a policy which reads no losses; of another one, the mixture that its first decision sets out
    from.
    """
    policy = find_policy(config.bandit.policy)
    if policy.reads_losses:
        return np.asarray(policy.initial_mixture(jnp.asarray(mixture.weights, jnp.float32)), np.float64)
    state = create_bandit(config, mixture, jax.random.key(config.seed))
    return np.asarray(policy.propose(state), np.float64)
