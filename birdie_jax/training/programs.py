"""The compiled programs of a run: the first state, the train step, the validation step."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from birdie_jax.bandit import init_bandit
from birdie_jax.batch import Batch
from birdie_jax.batching import DecisionSchedule
from birdie_jax.config import Config
from birdie_jax.models import build_model
from birdie_jax.objectives import Mixture
from birdie_jax.training.optimizer import make_optimizer
from birdie_jax.training.sharding import of_batch, of_state, on_every_device_alike, replicated
from birdie_jax.training.step import ArmSums, StepSettings, TrainState, arm_sums, train_step


class Programs(NamedTuple):
    """What a run compiles; each is a `jax.jit` function, to be called or lowered under the run's mesh.

    Attributes:
        create_state: () -> the state before the first step.
        train_step: (state, batch) -> (state, metrics); takes the memory of the state that it is given.
        validation_step: (params, batch) -> sums of each arm.
        abstract_state: shapes, types and shardings of the state.
    """

    create_state: Callable[[], TrainState]
    train_step: Callable[..., Any]
    validation_step: Callable[..., ArmSums]
    abstract_state: TrainState


def make_programs(config: Config, vocab_size: int, mixture: Mixture, mesh: jax.sharding.Mesh) -> Programs:
    """Return the programs of a run on `mesh`, which has to be the mesh in force.

    Args:
        config: of the run.
        vocab_size: rows of the embedding table.
        mixture: the arms that the run trains on.
        mesh: of devices, which need not be there as long as nothing is called.
    """
    model = build_model(config.model, vocab_size)
    optimizer = make_optimizer(config.optimizer, config.train.num_steps)
    settings = StepSettings(len(mixture.arms), config.train.accumulation_steps, config.train.loss_chunk)
    classes = sorted(set(mixture.groups))
    groups = np.array([classes.index(group) for group in mixture.groups], np.int32)
    schedule = DecisionSchedule(config.bandit.every_steps, config.train.num_steps)

    def create_state() -> TrainState:
        model_key, bandit_key = jax.random.split(jax.random.key(config.seed))
        one = jnp.zeros((1, config.batching.length), jnp.int32)
        batch = Batch(one, one, one > 0, one, one, one > 0, one)
        params = model.init(model_key, batch)["params"]
        with on_every_device_alike():
            bandit = init_bandit(config.bandit, mixture.weights, groups, schedule.num_decisions, bandit_key)
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), bandit)

    shapes = jax.eval_shape(create_state)
    shardings = of_state(mesh, shapes)
    return Programs(
        jax.jit(create_state, out_shardings=shardings),
        jax.jit(
            functools.partial(train_step, model, optimizer, settings),
            in_shardings=(shardings, of_batch(mesh)),
            out_shardings=(shardings, replicated(mesh)),
            donate_argnums=0,
        ),
        jax.jit(functools.partial(arm_sums, model, settings)),
        jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            shapes,
            shardings,
        ),
    )
